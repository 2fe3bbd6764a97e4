package data

import (
	"unicode"
	"unicode/utf8"
)

// maxPiece bounds a piece, and with it the memory and time of encoding. GPT-2
// has no such bound: where a word, a number or white space goes on for longer,
// it is cut, and no token spans the cut.
const maxPiece = 64 << 10

// nextPiece gives the length of the first piece of a text as GPT-2 cuts it, by
// the pattern
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// in which white space in front of a word keeps its last character out, so that
// a space stays with its word. A byte that is not UTF-8 counts as punctuation.
// The result is 0 if the text is empty, or if it is not the last of its text
// and the piece depends on what follows.
func nextPiece(text []byte, last bool) int {
	if len(text) == 0 || !last && len(text) < 1+utf8.UTFMax {
		return 0
	}
	if n := contraction(text); n > 0 {
		return n
	}
	class, end := classOf(text)
	if text[0] == ' ' && len(text) > 1 {
		if c, size := classOf(text[1:]); c != space {
			class, end = c, 1+size
		}
	}
	for end < len(text) && end < maxPiece {
		if !last && !utf8.FullRune(text[end:]) {
			return 0
		}
		c, size := classOf(text[end:])
		if c != class {
			return withoutLastSpace(text[:end], class)
		}
		end += size
	}
	if end < maxPiece && !last {
		return 0
	}
	return end
}

// withoutLastSpace is the length of a piece that something of another class
// follows.
func withoutLastSpace(piece []byte, class class) int {
	if class == space {
		if _, size := utf8.DecodeLastRune(piece); size < len(piece) {
			return len(piece) - size
		}
	}
	return len(piece)
}

// contraction is the length of an English ending such as 's that a text starts
// with, or 0.
func contraction(text []byte) int {
	if text[0] != '\'' || len(text) < 2 {
		return 0
	}
	switch text[1] {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(text) > 2 {
		switch string(text[1:3]) {
		case "re", "ve", "ll":
			return 3
		}
	}
	return 0
}

type class int

const (
	letter class = iota
	number
	space
	other
)

// classOf gives the class and the size of the first character of a text.
func classOf(text []byte) (class, int) {
	r, size := rune(text[0]), 1
	if r >= utf8.RuneSelf {
		r, size = utf8.DecodeRune(text)
	}
	switch {
	case unicode.IsLetter(r):
		return letter, size
	case unicode.IsSpace(r):
		return space, size
	case unicode.IsNumber(r):
		return number, size
	}
	return other, size
}
