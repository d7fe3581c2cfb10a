package access

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"code.wake.dev/wake/pkg/subjects"
)

// describeRoles returns the table of what each role may do, in Markdown: what it sends, the
// streams that it reads, and what it listens to. What it takes to read, such as
// consumers, isn't told.
func describeRoles(n subjects.Names) (string, error) {
	var b strings.Builder
	b.WriteString("| role | for | account | sends | reads | listens to |\n|---|---|---|---|---|---|\n")
	for _, s := range seats {
		p, err := s.role.Permissions(n, inboxPrefix)
		if err != nil {
			return "", err
		}
		var sends, reads, listens []string
		for _, subject := range p.Publish {
			if stream, ok := strings.CutPrefix(subject, "$JS.API.STREAM.MSG.GET."); ok {
				reads = append(reads, stream)
			}
			if !strings.HasPrefix(subject, "$JS.API.") && !strings.HasPrefix(subject, "$JS.ACK.") && !strings.HasPrefix(subject, "$JS.FC.") && !strings.HasPrefix(subject, "_R_.") || subject == "$JS.API.>" {
				sends = append(sends, subject)
			}
		}
		for _, subject := range p.Subscribe {
			if !strings.HasPrefix(subject, inboxPrefix) && !strings.HasPrefix(subject, "$JS.EVENT.") {
				listens = append(listens, subject)
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", s.role, s.purpose, s.account, quoteList(sends), quoteList(reads), quoteList(listens))
	}
	return b.String(), nil
}

func quoteList(list []string) string {
	if len(list) == 0 {
		return "–"
	}
	return "`" + strings.Join(list, "`, `") + "`"
}

var updateRoles = flag.Bool("update", false, "rewrite testdata/roles.md")

// The table of roles is what docs/security.md shows, see TestSecurityDocument of schemas.
func TestDescribeRoles(t *testing.T) {
	got, err := describeRoles(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "roles.md")
	if *updateRoles {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("roles come out otherwise: run with -update, and then `go test ./schemas -update`; got:\n%s", got)
	}
}
