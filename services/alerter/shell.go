package alerter

import (
	"regexp"
	"strings"
	"sync"
)

// maxCommand bounds how much of a command is looked at, in bytes.
const maxCommand = 16 << 10

// simpleCommands splits a shell's input into its simple commands, less what
// stands before their own words: variables, cd, and programs that run another
// one. Quoted text stays within its command; here-documents are left out. It is
// a look at the command, not a parser of shells.
func simpleCommands(input string) []string {
	var all []string
	for _, c := range splitAtOperators(withoutDocuments(clipText(input, maxCommand))) {
		if c = withoutWrappers(c); c != "" {
			all = append(all, c)
		}
	}
	return all
}

// splitAtOperators cuts at the operators of the shell that stand outside quotes.
func splitAtOperators(input string) []string {
	var all []string
	var quote byte
	begin := 0
	for i := 0; i < len(input); i++ {
		switch c := input[i]; {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '&' && i > 0 && input[i-1] == '>': // 2>&1
		case strings.IndexByte("&|;\n()", c) >= 0:
			all = append(all, strings.TrimSpace(input[begin:i]))
			begin = i + 1
		}
	}
	return append(all, strings.TrimSpace(input[begin:]))
}

// wrapper is what may stand before a command.
var wrapper = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:` +
		`[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|\S*)\s+` +
		`|(?:time|sudo|env|nice|nohup|exec|command|npx|bunx|then|do|else|if|!)\s+(?:-\S+\s+)*` +
		`|(?:pnpm|yarn)\s+(?:dlx|exec)\s+|(?:uv|poetry|pipenv|rye)\s+run\s+(?:-\S+\s+)*` +
		`|timeout\s+(?:-\S+\s+)*\S+\s+|xvfb-run\s+(?:-\S+\s+)*|\{\s+` +
		`|(?:\.{0,2}/)?(?:\S+/)?node_modules/\.bin/|(?:\.venv|venv)/bin/)`)
})

func withoutWrappers(c string) string {
	for {
		rest := c[len(wrapper().FindString(c)):]
		if rest == c {
			return c
		}
		c = rest
	}
}

var document = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`<<-?\s*['"]?(\w+)['"]?`) })

// withoutDocuments drops the lines of here-documents.
func withoutDocuments(input string) string {
	var kept []string
	end := ""
	for l := range strings.Lines(input) {
		if end != "" {
			if strings.TrimSpace(l) == end {
				end = ""
			}
			continue
		}
		kept = append(kept, l)
		if m := document().FindStringSubmatch(l); m != nil {
			end = m[1]
		}
	}
	return strings.Join(kept, "")
}
