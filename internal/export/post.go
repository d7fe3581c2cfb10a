package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// Endpoint takes spans by OTLP/HTTP in JSON.
type Endpoint struct {
	URL    string // such as http://localhost:4318/v1/traces
	Header http.Header
	Client *http.Client
}

// How often and how long is tried.
const (
	postTries = 5
	postWait  = 30 * time.Second // for one answer
	postPause = time.Second      // before the second try; then twice as long each time
)

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// Post sends one body. What the endpoint can't take at the moment (429, 502, 503,
// 504, no connection) is sent again, after the pause that it asks for. It fails
// if the endpoint refuses the body or some of its spans.
func (p Endpoint) Post(ctx context.Context, body []byte) error {
	pause := postPause
	for try := 1; ; try++ {
		again, after, err := p.postOnce(ctx, body)
		if err == nil || !again || try == postTries {
			return err
		}
		select {
		case <-time.After(max(pause, after)):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", ctx.Err(), err)
		}
		pause *= 2
	}
}

func (p Endpoint) postOnce(ctx context.Context, body []byte) (again bool, after time.Duration, err error) {
	wait, cancel := context.WithTimeout(ctx, postWait)
	defer cancel()
	req, err := http.NewRequestWithContext(wait, http.MethodPost, p.URL, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	maps.Copy(req.Header, p.Header)
	req.Header.Set("Content-Type", "application/json")
	answer, err := p.Client.Do(req)
	if err != nil {
		return ctx.Err() == nil, 0, err
	}
	defer answer.Body.Close() //nolint:errcheck // was read
	said, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return true, 0, fmt.Errorf("read the answer: %w", err)
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusAccepted:
		return false, 0, partialError(said)
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	seconds, _ := strconv.Atoi(answer.Header.Get("Retry-After"))
	after = min(time.Duration(max(0, seconds))*time.Second, time.Minute)
	return again, after, fmt.Errorf("%s answers %s: %.500q", req.URL.Redacted(), answer.Status, said)
}

// partialError is the error of an endpoint that took some of the spans only.
func partialError(said []byte) error {
	var a struct {
		Partial struct {
			Rejected json.Number `json:"rejectedSpans"`
			Message  string      `json:"errorMessage"`
		} `json:"partialSuccess"`
	}
	err := json.Unmarshal(said, &a)
	if n, _ := a.Partial.Rejected.Int64(); err == nil && n > 0 { // else it is some answer in words
		return fmt.Errorf("the endpoint rejected %d spans: %.500s", n, a.Partial.Message)
	}
	return nil
}
