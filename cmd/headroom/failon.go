package main

import (
	"fmt"
	"slices"
	"strings"
)

// failOnAny stands for many words of --fail-on.
const failOnAny = "any"

// failOn is the value of a flag --fail-on: words out of a list, for each of
// which the command ends with status 1.
type failOn struct {
	kind  string // of the words, such as "rule"
	known []string
	any   []string // what "any" stands for
	named []string
}

// Set adds words with commas between them. Case does not matter.
func (f *failOn) Set(text string) error {
	for _, word := range strings.Split(text, ",") {
		word = strings.TrimSpace(word)
		i := slices.IndexFunc(f.known, func(k string) bool { return strings.EqualFold(k, word) })
		switch {
		case strings.EqualFold(word, failOnAny):
			f.named = append(f.named, f.any...)
		case i < 0:
			return fmt.Errorf("%q is no %s: give one or more of %s, or %s", word, f.kind, strings.Join(f.known, ", "), failOnAny)
		default:
			f.named = append(f.named, f.known[i])
		}
	}
	return nil
}

// String gives the words as Set reads them.
func (f *failOn) String() string { return strings.Join(f.named, ",") }

// Type names the words for the help.
func (f *failOn) Type() string { return strings.ToUpper(f.kind) }

// names says whether a word was given.
func (f *failOn) names(word string) bool { return slices.Contains(f.named, word) }
