package native

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// constant answers each request with the same body.
type constant string

func (c constant) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(c)))}, nil
}

// What a server says without end ends with an error, however it comes.
func TestAnswersAreBounded(t *testing.T) {
	for body, whole := range map[string]bool{"": true, "12345678": true, "123456789": false} {
		response, err := bounded{constant(body), 8}.RoundTrip(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(iotest.OneByteReader(response.Body))
		if err == nil != whole || whole && string(got) != body {
			t.Errorf("body %q: %q, %v", body, got, err)
		}
		_ = response.Body.Close()
	}
	for lines, whole := range map[string]bool{"12345678\n1234567\n\n123": true, "1\n123456789\n": false, "123456789": false} {
		in := iotest.HalfReader(&boundedLines{ReadCloser: io.NopCloser(iotest.OneByteReader(strings.NewReader(lines))), max: 8})
		got, err := io.ReadAll(in)
		if err == nil != whole || whole && string(got) != lines {
			t.Errorf("lines %q: %q, %v", lines, got, err)
		}
	}
	p := (&Provider{Client: &http.Client{Transport: constant("")}}).withDefaults()
	if b, ok := p.Client.Transport.(bounded); !ok || b.max != maxAnswer {
		t.Errorf("the client's transport is %T", p.Client.Transport)
	}
}
