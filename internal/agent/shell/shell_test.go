package shell_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"wake/internal/agent/shell"
	"wake/pkg/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a command and returns its result and what it put out in events.
func run(t *testing.T, ctx context.Context, text string) (shell.Result, string, []wire.Type, error) {
	t.Helper()
	argv, err := shell.Parse(wire.RawString(text))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	var types []wire.Type
	c := shell.Command{Argv: argv, Dir: t.TempDir(), Env: os.Environ(), Stdin: "given"}
	res, err := shell.Run(ctx, c, func(e *wire.Event) error {
		e.RunID, e.NodeID, e.Seq, e.Epoch = "r", "n", 1, 1
		if err := wire.Validate(e); err != nil {
			t.Errorf("%s: %v", e.Type(), err)
		}
		types = append(types, e.Type())
		if p, ok := e.Payload.(*wire.ExecOutput); ok {
			out.WriteString(p.Content)
		}
		return nil
	})
	return res, out.String(), types, err
}

func TestExitAndOutput(t *testing.T) {
	res, out, types, err := run(t, t.Context(), `cat; printf ' héllo'; echo oops >&2; exit 3`)
	if err != nil {
		t.Fatal(err)
	}
	if res.ExitCode != 3 || res.Stdout != "given héllo" || res.Stderr != "oops\n" {
		t.Errorf("%+v", res)
	}
	if !strings.Contains(out, "héllo") || types[0] != wire.TypeExecStart || types[len(types)-1] != wire.TypeExecExit {
		t.Errorf("%q %v", out, types)
	}
}

func TestLongOutputIsWholeInEvents(t *testing.T) {
	res, out, _, err := run(t, t.Context(), `i=0; while [ $i -lt 20000 ]; do echo "line é $i"; i=$((i+1)); done`)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out, "\n"); n != 20000 || strings.Contains(out, "\uFFFD") {
		t.Errorf("events have %d lines", n)
	}
	if !res.StdoutTruncated || len(res.Stdout) > shell.MaxOutput || !strings.HasSuffix(res.Stdout, "line é 19999\n") {
		t.Errorf("result keeps %d bytes, truncated %t", len(res.Stdout), res.StdoutTruncated)
	}
}

func TestInvalidUTF8(t *testing.T) {
	if _, out, _, err := run(t, t.Context(), `printf 'a\377b'`); err != nil || out != "a\uFFFDb" {
		t.Errorf("%q %v", out, err)
	}
}

// A command that is cancelled ends with what it started, also in other sessions.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	argv, err := shell.Parse(wire.RawString(`setsid sleep 600 & echo started; sleep 600`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = shell.Run(ctx, shell.Command{Argv: argv, Env: os.Environ()}, func(e *wire.Event) error {
		if e.Type() == wire.TypeExecOutput {
			cancel(cause)
		}
		return nil
	})
	if !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
}

func TestRecordFails(t *testing.T) {
	full := errors.New("full")
	argv, err := shell.Parse(wire.RawString(`echo started; sleep 600`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = shell.Run(t.Context(), shell.Command{Argv: argv, Env: os.Environ()}, func(*wire.Event) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("error is %v", err)
	}
}

func TestNotFound(t *testing.T) {
	_, err := shell.Run(t.Context(), shell.Command{Argv: []string{"/no/such/program"}}, func(*wire.Event) error { return nil })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error is %v", err)
	}
}

func TestParse(t *testing.T) {
	words, err := wire.Marshal([]any{"echo", "a b"})
	if err != nil {
		t.Fatal(err)
	}
	if argv, err := shell.Parse(words); err != nil || len(argv) != 2 {
		t.Errorf("%q %v", argv, err)
	}
	for _, bad := range []any{"", "  ", []any{}, []any{"a", 1}, 7, nil, map[string]any{}} {
		v, err := wire.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if argv, err := shell.Parse(v); err == nil {
			t.Errorf("%v is %q", bad, argv)
		}
	}
}
