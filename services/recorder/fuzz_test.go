package recorder_test

import (
	"slices"
	"testing"

	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/recorder"
)

// FuzzQuestions sends anything to the verbs: each message is answered, in its
// own form, and none ends the process.
func FuzzQuestions(f *testing.F) {
	p := newPlant(f)
	p.record(recorder.Config{})
	p.until(p.write(p.claim("r1", "coder"), text("an error")))
	verbs := []string{wire.VerbLog, wire.VerbStatus, wire.VerbRuns, wire.VerbEvents}
	for _, s := range []string{
		``, `{}`, `{"run":"r1"}`, `{"run":"@last","grep":"error|(","limit":5,"offset":0,"since":"5m","type":"text","node":"coder","details":true}`,
		`{"type":"command","action":"get_log","requestId":"1","params":{"agentId":"coder"}}`, `{"type":"command","action":"status","params":[]}`,
		`{"status":["active"],"label":"a=b","flow":"x","cursor":"5"}`, `{"from":18446744073709551615,"to":1,"kinds":["text"],"void":true}`,
		"\x80", "\x81\xa3run\xa2r1", "\x81\xa4grep\xa1(", "\xc1", "\xdf\xff\xff\xff\xff", `{"run":"r1","grep":"(a*)*b"}`, `{"run":"' OR 1=1 --"}`,
		`{"run":"r1","limit":99999999999999999999}`, `{"since":-1}`, `{"run":"\u0000"}`,
	} {
		f.Add(0, []byte(s))
	}
	f.Fuzz(func(t *testing.T, verb int, request []byte) {
		name := verbs[uint(verb)%uint(len(verbs))]
		m, err := p.nc.RequestWithContext(t.Context(), "wake.api."+name, request)
		if err != nil {
			t.Fatal(err)
		}
		raw := wire.Raw(m.Data)
		if len(request) == 0 || request[0] == '{' {
			if raw, err = wire.RawFromJSON(m.Data); err != nil {
				t.Fatalf("%q is answered by %q: %v", request, m.Data, err)
			}
		}
		if canonical, err := wire.Canonical(raw); err != nil || !slices.Equal(canonical, raw) || raw.Get("type") == nil && raw.Get("error") == nil && len(raw) < 2 {
			t.Fatalf("%q is answered by %q: %v", request, m.Data, err)
		}
		if code := raw.TextAt("error", "code"); code == string(wire.CodeInternal) {
			t.Fatalf("%q made the service fail", request)
		}
	})
}
