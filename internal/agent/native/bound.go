package native

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
)

// maxAnswer bounds the body of an answer, in bytes: of a model, or of a server of tools. A stream of the longest answers that
// models give has a tenth of it. What a server of tools that is a command says in one line has the same bound.
const maxAnswer = 64 << 20

// bounded bounds the answers of a server.
type bounded struct {
	next http.RoundTripper
	max  int64
}

// boundAnswers returns a client that reads of each answer at most maxAnswer bytes: a longer one ends with an error.
func boundAnswers(c *http.Client) *http.Client {
	bound := *c
	bound.Transport = bounded{cmp.Or(c.Transport, http.DefaultTransport), maxAnswer}
	return &bound
}

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = &boundedBody{ReadCloser: response.Body, max: b.max}
	return response, nil
}

// boundedBody fails when more than max bytes come.
type boundedBody struct {
	io.ReadCloser

	max, read int64
}

// Read implements [io.Reader].
func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.read += int64(n); b.read > b.max {
		return 0, tooLong(b.max)
	}
	return n, err
}

// boundedLines fails when a line comes that has more than max bytes.
type boundedLines struct {
	io.ReadCloser

	max, line int
}

// Read implements [io.Reader].
func (b *boundedLines) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if i := bytes.LastIndexByte(p[:n], '\n'); i >= 0 {
		b.line = n - i - 1
	} else if b.line += n; b.line > b.max {
		return 0, tooLong(int64(b.max))
	}
	return n, err
}

func tooLong(limit int64) error {
	return fmt.Errorf("the answer is too long: it has more than %d bytes", limit)
}
