package seal

import (
	"fmt"
	"testing"
)

// However many runs there are, only so many of their ciphers are kept, and each is made again when it is needed.
func TestKeptCiphersAreBounded(t *testing.T) {
	t.Parallel()
	k, err := Parse([]byte("a MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="))
	if err != nil {
		t.Fatal(err)
	}
	first, err := k.runCipher("a", "0")
	if err != nil {
		t.Fatal(err)
	}
	box := first.Seal(nil, nil, []byte("the plan"), nil)
	for i := range 2 * maxDerived {
		if _, err := k.runCipher("a", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		if len(k.derived) > maxDerived {
			t.Fatalf("%d ciphers are kept", len(k.derived))
		}
	}
	again, err := k.runCipher("a", "0")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := again.Open(nil, nil, box, nil); err != nil || string(got) != "the plan" {
		t.Errorf("%v, %q", err, got)
	}
}
