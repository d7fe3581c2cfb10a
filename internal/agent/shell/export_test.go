package shell

// Cut decodes b in pieces of the given sizes, the rest as one.
func Cut(b []byte, sizes []int) (out []string) {
	var d textDecoder
	for _, n := range sizes {
		n = min(n, len(b))
		out = append(out, d.decode(b[:n]))
		b = b[n:]
	}
	return append(out, d.decode(b), d.takeRest())
}
