package main

import "testing"

func TestByteSize(t *testing.T) {
	good := map[string]int64{
		"0": 0, "-1": -1, "1024": 1024, "1k": 1000, "1KiB": 1024, "20MB": 20e6, "1.5GiB": 3 << 29, "2tb": 2e12, "10B": 10,
	}
	for in, want := range good {
		var b byteSize
		if err := b.Set(in); err != nil || int64(b) != want {
			t.Errorf("%q: %d and %v, want %d", in, b, err, want)
		}
	}
	for _, in := range []string{"", "MB", "1XB", "1 GB", "GB1", "NaN", "1e30", "99999999TB", "1bk", "-1e30", "-99999999TB", "-Inf"} {
		var b byteSize
		if err := b.Set(in); err == nil {
			t.Errorf("%q: %d, want an error", in, b)
		}
	}
}
