package deliver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"code.wake.dev/wake/pkg/subjects"
)

// poster posts JSON to one URL.
type poster struct {
	client  *http.Client
	url     string
	headers map[string]string
	own     *http.Transport // nil: not ours to close
}

// newPoster returns a poster by a transport, nil for one of its own. It follows no
// redirects: what is signed for one address isn't for another.
func newPoster(transport http.RoundTripper, address string, headers map[string]string) poster {
	p := poster{url: address, headers: headers}
	if transport == nil {
		p.own = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
		transport = p.own
	}
	p.client = &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

func (p poster) closeSender() {
	if p.own != nil {
		p.own.CloseIdleConnections()
	}
}

// maxAnswer is how much of an answer is read.
const maxAnswer = 64 << 10

// postBody posts a body. Its errors don't show the URL.
func (p poster) postBody(ctx context.Context, contentType string, body []byte, headers map[string]string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return finalError("the request can't be made")
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "wake")
	for _, all := range []map[string]string{p.headers, headers} {
		for k, v := range all {
			req.Header.Set(k, v)
		}
	}
	res, err := p.client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err
		}
		return err
	}
	defer func() { _ = res.Body.Close() }()                         // its status is what counts
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // so that the connection is kept
	return statusError(res)
}

// statusError says what an answer means. Some say that the same request will never be
// taken; after all others it may be, later.
func statusError(res *http.Response) error {
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return nil
	}
	e := &sendError{err: fmt.Errorf("answered %d %s", res.StatusCode, http.StatusText(res.StatusCode)), after: retryAfter(res.Header)}
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		e.final = true
	}
	return e
}

// retryAfter reads the header, which has seconds or a date.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.Atoi(v); err == nil {
		return time.Duration(min(max(s, 0), int(maxAsked/time.Second))) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}

// webhook posts CloudEvents, signed as Standard Webhooks says.
type webhook struct {
	poster
	names  subjects.Names
	signer *standardwebhooks.Webhook // nil: there is no secret
}

func newWebhook(transport http.RoundTripper, s *Sink, names subjects.Names) (*webhook, error) {
	w := &webhook{poster: newPoster(transport, s.URL, s.Headers), names: names}
	if s.Secret == "" {
		return w, nil
	}
	signer, err := standardwebhooks.NewWebhook(s.Secret)
	if err != nil {
		return nil, errors.New("the secret is not base64")
	}
	w.signer = signer
	return w, nil
}

func (w *webhook) sendNotification(ctx context.Context, n Notification) error {
	body, err := n.cloudEvent(w.names)
	if err != nil {
		return finalError("encode: %w", err)
	}
	now := time.Now()
	headers := map[string]string{
		standardwebhooks.HeaderWebhookID:        n.ID,
		standardwebhooks.HeaderWebhookTimestamp: strconv.FormatInt(now.Unix(), 10),
	}
	if w.signer != nil {
		signature, err := w.signer.Sign(n.ID, now, body)
		if err != nil {
			return finalError("sign: %w", err)
		}
		headers[standardwebhooks.HeaderWebhookSignature] = signature
	}
	return w.postBody(ctx, "application/cloudevents+json; charset=utf-8", body, headers)
}

// alertmanager posts what Prometheus would.
type alertmanager struct{ poster }

// alertmanagerPath is where Alertmanagers take alerts.
const alertmanagerPath = "/api/v2/alerts"

func newAlertmanager(transport http.RoundTripper, s *Sink) alertmanager {
	address := strings.TrimSuffix(s.URL, "/")
	if !strings.HasSuffix(address, alertmanagerPath) {
		address += alertmanagerPath
	}
	return alertmanager{newPoster(transport, address, s.Headers)}
}

// postedAlert is an alert of the Alertmanager's API. Its labels identify it.
type postedAlert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    string            `json:"startsAt"`
}

func (a alertmanager) sendNotification(ctx context.Context, n Notification) error {
	p := postedAlert{
		Labels:      map[string]string{"alertname": "wake_test", "severity": string(n.Severity), "id": n.ID},
		Annotations: map[string]string{"summary": n.Text},
		StartsAt:    n.utcTime().Format(time.RFC3339Nano),
	}
	switch {
	case n.Alert != nil:
		p.Labels["alertname"] = "wake_" + n.Alert.Kind
		if n.link != "" {
			p.Annotations["answer"] = n.link
		}
		for k, v := range map[string]string{"run": n.Alert.RunID, "node": n.Alert.NodeID, "flow": n.Alert.Flow, "agent": n.Alert.Label} {
			if v != "" {
				p.Labels[k] = strings.ToValidUTF8(v, "\uFFFD")
			}
		}
	case n.Digest != nil:
		p.Labels["alertname"] = "wake_digest_" + n.Digest.Reason
	}
	body, err := json.Marshal([]postedAlert{p})
	if err != nil {
		return finalError("encode: %w", err)
	}
	return a.postBody(ctx, "application/json", body, nil)
}
