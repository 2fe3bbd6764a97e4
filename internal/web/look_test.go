package web_test

import (
	"flag"
	"testing"
)

var look = flag.String("look", "", "URL of a page to take pictures of")

func TestLook(t *testing.T) {
	if *look == "" {
		t.Skip()
	}
	b := openBrowser(t)
	b.screen(1440, 900, "light")
	b.open(*look)
	b.tab("segments")
	b.shot("light-segments")
	for _, n := range []string{"blocks", "flame", "largest", "steps", "whatif", "compare"} {
		b.tab(n)
		b.shot("light-" + n)
	}
	b.screen(1440, 900, "dark")
	b.tab("segments")
	b.shot("dark-segments")
	b.screen(390, 844, "light")
	b.shot("small")
}
