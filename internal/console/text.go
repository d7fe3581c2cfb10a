package console

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"strconv"
	"strings"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/internal/visible"
	"code.wake.dev/wake/pkg/wire"
)

// maxShown bounds the text of one value on a page; the rest can be downloaded.
const maxShown = 256 << 10

// coloredText is a text with the colours that its escape sequences ask for, and nothing else of them.
func coloredText(s string) template.HTML {
	s, cut := timeline.Cut(s, maxShown)
	var b strings.Builder
	class := ""
	put := func(text string) {
		text = template.HTMLEscapeString(timeline.Sanitize(text))
		if class != "" && text != "" {
			text = `<span class="` + class + `">` + text + `</span>`
		}
		b.WriteString(text)
	}
	for s != "" {
		i := strings.IndexByte(s, visible.Escape)
		if i < 0 {
			break
		}
		put(s[:i])
		n := visible.Sequence(s[i:])
		n = cmp.Or(n, 1)
		if sequence := s[i : i+n]; strings.HasPrefix(sequence, "\x1b[") && strings.HasSuffix(sequence, "m") {
			class = colorClass(sequence[2:len(sequence)-1], class)
		}
		s = s[i+n:]
	}
	put(s)
	if cut > 0 {
		fmt.Fprintf(&b, `<span class="dim">… %d more bytes</span>`, cut)
	}
	return template.HTML(b.String()) // every piece was escaped
}

// colorClass is the class of a text behind a sequence that sets colours.
func colorClass(codes, class string) string {
	list := strings.Split(codes, ";")
	for i := 0; i < len(list); i++ {
		n, _ := strconv.Atoi(list[i])
		switch {
		case n == 0, n == 39:
			class = ""
		case n == 38 || n == 48:
			i += 2 // of a palette
		case n >= 30 && n <= 37, n >= 90 && n <= 97:
			class = fmt.Sprintf("c%d", n%10)
		}
	}
	return class
}

// prettyValue is a value as text: a text as it is, all else as indented JSON.
func prettyValue(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case wire.Raw:
		if len(x) == 0 {
			return ""
		}
		if s, ok := x.Text(); ok {
			return s
		}
		v = x.Any()
		if v == nil {
			return ""
		}
	case string:
		return x
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// prettyText is a value as a page shows it.
func prettyText(v any) template.HTML { return coloredText(prettyValue(v)) }

// mostCost is the largest cost of rows, or 0.
func mostCost(rows []wire.SpendStats) (most float64) {
	for _, r := range rows {
		most = max(most, r.CostUsd)
	}
	return most
}
