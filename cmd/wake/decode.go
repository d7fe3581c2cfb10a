package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"wake/pkg/wire"
)

func (a *app) decodeCommand() *cobra.Command {
	var key string
	cmd := &cobra.Command{
		Use:   "decode",
		Short: "Turn msgpack on stdin into JSON",
		Long: `Turn msgpack on stdin into JSON: one line per value. What is no msgpack map or
array is passed through as it is, so that it can stand behind any subject:

    nats sub 'wake.events.>' --translate 'wake decode'
    nats kv get WAKE_SNAPSHOTS RUN --raw | wake decode`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			in, err := io.ReadAll(a.in)
			if err != nil {
				return fmt.Errorf("read stdin: %w", err)
			}
			return decode(a.out, in, key)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "write only this `field` of each value; dots lead into nested ones")
	return cmd
}

// decode writes the values of in as JSON, a line each, and whatever comes
// behind the last one as it is.
func decode(w io.Writer, in []byte, key string) error {
	var out []byte
	for len(in) > 0 && isContainer(in[0]) {
		line, rest, err := wire.AppendFirstJSON(nil, in)
		if err != nil {
			break
		}
		value := in[:len(in)-len(rest)]
		if key != "" {
			if line, err = field(value, key); err != nil {
				return err
			}
		}
		out = append(append(out, line...), '\n')
		in = rest
	}
	if key == "" {
		out = append(out, in...)
	}
	_, err := w.Write(out)
	return err
}

// isContainer reports whether a msgpack map or array may begin with c. Numbers
// are left alone, as every ASCII character is one.
func isContainer(c byte) bool { return c >= 0x80 && c <= 0x9f || c >= 0xdc && c <= 0xdf }

// field returns a field of a value as JSON; null if it isn't there.
func field(value []byte, path string) ([]byte, error) {
	at := wire.Raw(bytes.Clone(value))
	for name := range strings.SplitSeq(path, ".") {
		at = at.Get(name)
	}
	if at == nil {
		at = wire.Null
	}
	return wire.AppendJSON(nil, at)
}
