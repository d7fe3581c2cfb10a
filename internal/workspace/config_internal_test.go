package workspace

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkFilterConfig filters configurations of lines that go on. The cost of a byte is the same however many there are.
func BenchmarkFilterConfig(b *testing.B) {
	for _, kib := range []int{16, 256} {
		content := []byte("[core]\n\tbare = false\n" + strings.Repeat("\\\n", kib<<9))
		b.Run(fmt.Sprint(kib, "KiB"), func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				filterConfig(content)
			}
		})
	}
}
