package main

import (
	"bytes"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

func TestDecode(t *testing.T) {
	tests := []struct {
		name, in, key, want string
	}{
		{"nothing", "", "", ""},
		{"one value", "\x81\xa1a\x01", "", "{\"a\":1}\n"},
		{"several values", "\x81\xa1a\x01\x92\x01\xc0", "", "{\"a\":1}\n[1,null]\n"},
		{"order is kept", "\x82\xa1b\x01\xa1a\x02", "", "{\"b\":1,\"a\":2}\n"},
		{"text", "hello", "", "hello"},
		{"JSON", `{"a":1}`, "", `{"a":1}`},
		{"text that could begin a map", "\u0740 Syriac", "", "\u0740 Syriac"},
		{"a value that is cut off", "\x82\xa1a\x01\xa1", "", "\x82\xa1a\x01\xa1"},
		{"garbage behind a value", "\x81\xa1a\x01\xc1\x00", "", "{\"a\":1}\n\xc1\x00"},
		{"an extension type", "\x81\xa1a\xd4\x01\x02", "", "\x81\xa1a\xd4\x01\x02"},
		{"a terminal escape", "\x81\xa1a\xa4\x1b[2J", "", "{\"a\":\"\\u001b[2J\"}\n"},
		{"key", "\x81\xa1a\x81\xa1b\xa1c", "a.b", "\"c\"\n"},
		{"key that isn't there", "\x81\xa1a\x01", "b.c", "null\n"},
		{"key of text", "hello", "a", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			d := msgpackDecoder{key: tt.key, inline: func(v wire.Raw) (wire.Raw, error) { return v, nil }}
			if err := d.decode(&out, []byte(tt.in)); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != tt.want {
				t.Errorf("decode(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}
