package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/feed"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/pkg/wire"
)

func (a fileVerbs) decodeCommand() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "decode",
		Short: "Turn msgpack on stdin into JSON",
		Long: `Turn msgpack on stdin into JSON: one line per value. What is no msgpack map or
array is passed through as it is, so that it can stand behind any subject:

    nats sub 'wake.events.>' --translate 'wake decode'
    nats kv get WAKE_SNAPSHOTS RUN --raw | wake decode

Large fields are kept apart and referred to. With --nats-url or --context they
are fetched. What is encrypted, events and any other values, is opened with
--encryption-keys.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := io.ReadAll(a.in)
			if err != nil {
				return fmt.Errorf("read stdin: %w", err)
			}
			keys, err := a.sealKeys()
			if err != nil {
				return err
			}
			d := msgpackDecoder{key: key, keys: keys, inline: func(v wire.Raw) (wire.Raw, error) { return v, nil }}
			if a.server.URL != "" || a.server.Context != "" {
				b := &blobs{app: a.app}
				defer b.close()
				d.inline = func(v wire.Raw) (wire.Raw, error) { return b.inlineValue(cmd.Context(), v) }
			}
			err = d.decode(a.out, in)
			for _, problem := range d.problems {
				a.printNote("wake: %s\n", timeline.Line(problem.Error(), maxMessage))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "write only this `field` of each value; dots lead into nested ones")
	return cmd
}

// msgpackDecoder writes msgpack as JSON.
type msgpackDecoder struct {
	key      string
	keys     *seal.Keys                       // for sealed events; nil: they stay sealed
	inline   func(wire.Raw) (wire.Raw, error) // puts large fields into a value
	problems []error                          // large fields that are missing
}

// decode writes the values of in as JSON, a line each, and whatever comes
// behind the last one as it is.
func (d *msgpackDecoder) decode(w io.Writer, in []byte) error {
	var out []byte
	if seal.IsValue(in) {
		in = d.revealValue(in)
	}
	for len(in) > 0 && isContainer(in[0]) {
		line, rest, err := wire.AppendFirstJSON(nil, in)
		if err != nil {
			break
		}
		if line, err = d.encodeLine(line, in[:len(in)-len(rest)]); err != nil {
			return err
		}
		out = append(append(out, line...), '\n')
		in = rest
	}
	if d.key == "" {
		out = append(out, in...)
	}
	_, err := w.Write(out)
	return err
}

// revealValue returns what a sealed value holds, or, where it can't be opened, what it says
// of itself.
func (d *msgpackDecoder) revealValue(stored []byte) []byte {
	_, value, err := d.keys.Reveal(stored)
	if err == nil {
		return value
	}
	d.problems = append(d.problems, err)
	id, place := seal.Label(stored)
	label, err := wire.Marshal(map[string]any{"type": seal.Type, "key": id, "place": place})
	if err != nil {
		return nil
	}
	return label
}

// encodeLine returns the line that the command prints for a value with this JSON form.
func (d *msgpackDecoder) encodeLine(line []byte, value wire.Raw) ([]byte, error) {
	whole, err := value, error(nil)
	if typ := value.TextAt("type"); d.keys != nil && typ == string(seal.Type) {
		whole, err = d.keys.OpenEncoded(value)
	}
	if err == nil {
		whole, err = d.inline(whole)
	}
	if err != nil {
		d.problems = append(d.problems, err)
		whole = value
	}
	switch {
	case d.key != "":
		return fieldJSON(whole, d.key)
	case bytes.Equal(whole, value):
		return line, nil
	}
	return wire.AppendJSON(nil, whole)
}

// isContainer reports whether a msgpack map or array may begin with c. Numbers
// are left alone, as every ASCII character is one.
func isContainer(c byte) bool { return c >= 0x80 && c <= 0x9f || c >= 0xdc && c <= 0xdf }

// fieldJSON returns a field of a value as JSON; null if it isn't there.
func fieldJSON(at wire.Raw, path string) ([]byte, error) {
	for name := range strings.SplitSeq(path, ".") {
		at = at.Get(name)
	}
	if at == nil {
		at = wire.Null
	}
	return wire.AppendJSON(nil, at)
}

// blobs fetches what values refer to. It connects when the first does.
type blobs struct {
	app *app
	log *feed.Reader
}

func (b *blobs) close() {
	if b.log != nil {
		b.log.Conn().Close()
	}
}

// inlineValue puts what a value refers to in its place: the large fields of an event,
// or all of a large snapshot.
func (b *blobs) inlineValue(ctx context.Context, v wire.Raw) (wire.Raw, error) {
	if sum, ok := v.Get("$blob").Get("sha256").Text(); ok {
		return b.fetchBlob(ctx, sum)
	}
	if v.Get("blobs") == nil {
		return v, nil
	}
	return wire.Inline(v, func(sum string) ([]byte, error) { return b.fetchBlob(ctx, sum) })
}

func (b *blobs) fetchBlob(ctx context.Context, sum string) ([]byte, error) {
	if b.log == nil {
		var err error
		if b.log, err = b.app.openReader(ctx); err != nil {
			return nil, err
		}
	}
	return b.log.Blob(ctx, sum)
}
