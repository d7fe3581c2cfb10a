package queries

import (
	"slices"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// underscore stands for an underscore in the full text.
const underscore = '\ua7f7'

// wholeLine is the text of a line and of its call, as it is in the full text.
const wholeLine = `lines.text || E'\n' || lines.input || E'\n' || lines.output`

// shownLine is what of it there is.
const shownLine = `concat_ws(E'\n', nullif(lines.text, ''), nullif(lines.input, ''), nullif(lines.output, ''))`

func postgresFinder() finder {
	return finder{
		tables: "lines", match: "wake_words(" + wholeLine + ") @@ to_tsquery('simple', %s)",
		snippet: "left(" + shownLine + ", 100000)", order: "lines.pos", query: tsQuery, excerpt: markedExcerpt,
	}
}

// tsQuery is a search in the language of PostgreSQL's to_tsquery. An empty one
// finds nothing.
func tsQuery(words []word) string {
	var parts []string
	for _, w := range words {
		list := foldedWords(w.text)
		switch {
		case len(list) == 0 && !w.not:
			return "" // nothing has it
		case len(list) == 0:
			continue
		}
		part := "'" + strings.Join(list, " ") + "'"
		if w.open {
			part += ":*"
		}
		if w.not {
			part = "!" + part
		}
		parts = append(parts, part)
	}
	return strings.ReplaceAll(strings.Join(parts, " & "), "_", string(underscore))
}

// foldedWords takes a text apart into its words as they are in the full text.
func foldedWords(text string) []string {
	var list []string
	for t := range tokensOf(text) {
		list = append(list, t.folded)
	}
	return list
}

// token is a word in a text.
type token struct {
	from, to int // bytes
	folded   string
}

// tokensOf yields the words of a text.
func tokensOf(text string) func(yield func(token) bool) {
	return func(yield func(token) bool) {
		begin := -1
		for i, r := range text + " " {
			part := r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) && r > 0xbf || r >= '0' && r <= '9' || unicode.Is(unicode.Mn, r)
			switch {
			case part && begin < 0:
				begin = i
			case !part && begin >= 0:
				if !yield(token{begin, i, foldWord(text[begin:i])}) {
					return
				}
				begin = -1
			}
		}
	}
}

// foldWord is a word without accents, in lower case.
func foldWord(s string) string {
	return strings.ToLower(strings.Map(func(r rune) rune {
		if r >= 0x300 && r <= 0x36f {
			return -1
		}
		return r
	}, norm.NFD.String(s)))
}

// Sizes of an excerpt in words.
const (
	excerptWords  = 24
	excerptBefore = 8 // the first match
)

// markedExcerpt returns the part of a line that matches, with what matches between
// marks.
func markedExcerpt(text string, words []word) string {
	all := slices.Collect(tokensOf(text))
	begins, ends := map[int]bool{}, map[int]bool{} // tokens
	first := len(all)
	for _, w := range words {
		sought := foldedWords(w.text)
		if w.not || len(sought) == 0 {
			continue
		}
		for i := 0; i+len(sought) <= len(all); i++ {
			if matchesAt(all[i:i+len(sought)], sought, w.open) {
				begins[i], ends[i+len(sought)-1] = true, true
				first = min(first, i)
				i += len(sought) - 1
			}
		}
	}
	if first == len(all) {
		first = 0
	}
	from := max(0, min(first-excerptBefore, len(all)-excerptWords))
	to := min(len(all), from+excerptWords)
	var b strings.Builder
	at, stop := 0, len(text)
	if from > 0 {
		at = all[from].from
		b.WriteString("…")
	}
	if to < len(all) {
		stop = all[to-1].to
	}
	for i := from; i < to; i++ {
		t := all[i]
		b.WriteString(text[at:t.from])
		if begins[i] {
			b.WriteRune(markBegin)
		}
		b.WriteString(text[t.from:t.to])
		if ends[i] {
			b.WriteRune(markEnd)
		}
		at = t.to
	}
	b.WriteString(text[at:stop])
	if stop < len(text) {
		b.WriteString("…")
	}
	return b.String()
}

func matchesAt(all []token, sought []string, open bool) bool {
	for i, s := range sought {
		if got := all[i].folded; got != s && (!open || i < len(sought)-1 || !strings.HasPrefix(got, s)) {
			return false
		}
	}
	return true
}
