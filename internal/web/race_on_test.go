//go:build race

package web_test

// raceEnabled makes tests smaller where everything takes ten times as long.
const raceEnabled = true
