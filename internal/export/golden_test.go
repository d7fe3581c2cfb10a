package export_test

import (
	"bytes"
	"io"
	"path"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/export"
)

// formats write a run of one agent in each format.
var formats = map[string]func(io.Writer, *history) error{
	"jsonl": func(w io.Writer, h *history) error {
		_, err := export.JSONL(w, h.run, h.events(), noBlobs)
		return err
	},
	"openharness.jsonl": func(w io.Writer, h *history) error {
		_, err := export.OpenHarness(w, h.run, h.events(), h.events())
		return err
	},
	"claude.jsonl": func(w io.Writer, h *history) error {
		c, err := export.Conversations(h.events())
		if err != nil || len(c) == 0 {
			return err
		}
		_, err = export.Claude(w, h.run, h.events(), c[0])
		return err
	},
	"codex.jsonl": func(w io.Writer, h *history) error {
		c, err := export.Conversations(h.events())
		if err != nil || len(c) == 0 {
			return err
		}
		_, err = export.Codex(w, h.run, h.events(), c[0])
		return err
	},
	"html": func(w io.Writer, h *history) error {
		_, err := export.HTML(w, h.run, h.events())
		return err
	},
	"otlp.jsonl": func(w io.Writer, h *history) error {
		_, err := export.OTLP(h.run, h.events(), export.Spans{Content: true}, func(body []byte) error {
			_, err := w.Write(append(body, '\n'))
			return err
		})
		return err
	},
}

// Three real recordings, each as a stream or as the session file: what is exported
// stays as it is, byte for byte.
func TestGolden(t *testing.T) {
	for _, file := range []string{"stream/tools.jsonl", "stream/subagents.jsonl", "transcript/compact-manual.jsonl"} {
		for format, write := range formats {
			name := strings.TrimSuffix(path.Base(file), ".jsonl") + "." + format
			t.Run(name, func(t *testing.T) {
				var got, again bytes.Buffer
				if err := write(&got, recorded(t, file)); err != nil {
					t.Fatal(err)
				}
				if err := write(&again, recorded(t, file)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Bytes(), again.Bytes()) {
					t.Error("a second export differs")
				}
				golden(t, name, got.Bytes())
			})
		}
	}
}

// Every recording can be written in every format.
func TestRecordings(t *testing.T) {
	for _, file := range recordings(t) {
		t.Run(file, func(t *testing.T) {
			h := recorded(t, file)
			for format, write := range formats {
				if err := write(io.Discard, h); err != nil {
					t.Errorf("%s: %v", format, err)
				}
			}
		})
	}
}
