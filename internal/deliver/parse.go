package deliver

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/fsnotify/fsnotify"

	"code.wake.dev/wake/internal/document"
	"code.wake.dev/wake/pkg/wire"
)

// Limits of what a file says.
const (
	maxFile    = 1 << 20 // bytes
	maxTimeout = 15 * time.Second
)

// Section is a part of the file that others understand: a pointer to a struct with
// yaml tags. Each problem that it finds begins with the path of a field.
type Section interface {
	Validate() error
	Kinds() []string // of alerts that there are
}

// Parse reads the rules of a file. What stands under "detectors" it decodes into
// detectors. ${VAR} in URLs, secrets, headers and environments is looked up. The
// error is a [*document.Error] of all problems, without secrets.
func Parse(file string, src []byte, lookup func(string) (string, bool), detectors Section) (*Rules, error) {
	p := &checker{Problems: document.Problems{File: file}, lookup: lookup}
	p.root = document.Read(&p.Problems, src, maxFile)
	r := p.parseRules(detectors)
	if err := p.Err(); err != nil {
		return nil, err
	}
	return r, nil
}

// checker collects what is wrong with a file.
type checker struct {
	document.Problems
	lookup func(string) (string, bool)
	root   *document.Value
}

// addAt notes a problem of the value under some keys and indexes, at the place of what is nearest to it.
func (p *checker) addAt(path []any, format string, args ...any) {
	at, v := p.root.At, p.root
	for _, step := range path {
		next, place := childOf(v, step)
		if next == nil {
			break
		}
		v, at = next, place
	}
	p.Add(at, "", format, args...)
}

// childOf returns the value under a key or an index, and where that is.
func childOf(v *document.Value, step any) (*document.Value, document.Place) {
	switch step := step.(type) {
	case string:
		for _, f := range v.Fields {
			if f.Name == step {
				return f.Value, f.At
			}
		}
	case int:
		if step < len(v.List) {
			return v.List[step], v.List[step].At
		}
	}
	return nil, document.Place{}
}

// parseRules decodes and checks the file.
func (p *checker) parseRules(detectors Section) *Rules {
	file := struct {
		Sinks     map[string]*Sink `yaml:"sinks"`
		Rules     []*Rule          `yaml:"rules"`
		Detectors Section          `yaml:"detectors"`
	}{Detectors: detectors}
	if p.root != nil && p.root.Kind != document.Object && !p.root.IsAbsent() {
		p.Add(p.root.At, "", "the rules are an object with sinks and rules")
		return nil
	}
	p.Decode(p.root, &file)
	if p.Count() > 0 {
		return nil
	}
	r := &Rules{Sinks: file.Sinks, Rules: file.Rules}
	if err := detectors.Validate(); err != nil {
		p.addDetectorProblems(err)
	}
	p.checkRules(r, detectors.Kinds())
	return r
}

// addDetectorProblems notes the problems of the detectors where their fields are.
func (p *checker) addDetectorProblems(err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		at := []any{"detectors"}
		field, _, _ := strings.Cut(line, ":")
		for step := range strings.FieldsFuncSeq(field, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
			if i, err := strconv.Atoi(step); err == nil {
				at = append(at, i)
			} else {
				at = append(at, step)
			}
		}
		p.addAt(at, "detectors: %s", line)
	}
}

var namePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

func (p *checker) checkRules(r *Rules, kinds []string) {
	for _, name := range slices.Sorted(maps.Keys(r.Sinks)) {
		at := []any{"sinks", name}
		switch {
		case !namePattern().MatchString(name):
			p.addAt(at, "sink %q: letters, digits, - and _, at most 64, the first a letter or a digit", name)
		case r.Sinks[name] == nil:
			p.addAt(at, "sink %s is empty", name)
		default:
			p.checkSink(at, r.Sinks[name])
		}
	}
	for i, rule := range r.Rules {
		at := []any{"rules", i}
		if rule == nil {
			p.addAt(at, "a rule is empty")
			continue
		}
		p.checkRule(at, rule, r.Sinks, kinds)
	}
}

func (p *checker) checkSink(at []any, s *Sink) {
	under := func(key string) []any { return append(slices.Clone(at), key) }
	p.expandVariables(under("url"), s, &s.URL)
	p.expandVariables(under("secret"), s, &s.Secret)
	for _, fields := range []struct {
		key    string
		values map[string]string
	}{{"headers", s.Headers}, {"env", s.Env}} {
		for _, k := range slices.Sorted(maps.Keys(fields.values)) {
			v := fields.values[k]
			p.expandVariables(append(under(fields.key), k), s, &v)
			fields.values[k] = v
		}
	}
	p.checkSinkType(under, s)
	if s.Timeout < 0 || s.Timeout > maxTimeout {
		p.addAt(under("timeout"), "timeout is more than 0 and at most %s", maxTimeout)
	}
	for key, value := range map[string]int64{"attempts": int64(s.Attempts), "expire": int64(s.Expire)} {
		if value < 0 {
			p.addAt(under(key), "%s must not be negative", key)
		}
	}
	if s.Rate != nil && (s.Rate.Count < 1 || s.Rate.Per < time.Second) {
		p.addAt(under("rate"), "a rate is {count: at least 1, per: at least 1s}")
	}
}

// checkSinkType checks what depends on the type of a sink.
func (p *checker) checkSinkType(under func(string) []any, s *Sink) {
	kinds := sinkKinds()
	k, ok := kinds[s.Type]
	if !ok {
		p.addAt(under("type"), "type is %s", strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
		return
	}
	for _, f := range []struct {
		key string
		set bool
	}{{"url", s.URL != ""}, {"secret", s.Secret != ""}, {"headers", s.Headers != nil}, {"command", s.Command != nil}, {"env", s.Env != nil}} {
		if f.set && !slices.Contains(strings.Fields(k.fields), f.key) {
			p.addAt(under(f.key), "a sink of type %s has no %s", s.Type, f.key)
		}
	}
	for _, name := range []string{"PATH", "HOME", "LANG", "TZ"} {
		if v, ok := p.lookup(name); ok {
			s.base = append(s.base, name+"="+v)
		}
	}
	if k.check == nil {
		return
	}
	found := k.check(s)
	for _, field := range slices.Sorted(maps.Keys(found)) {
		p.addAt(under(field), "%s", found[field])
	}
}

var variable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`) })

// expandVariables replaces ${VAR}, and notes what of a text must not be shown.
func (p *checker) expandVariables(at []any, s *Sink, text *string) {
	*text = variable().ReplaceAllStringFunc(*text, func(ref string) string {
		name := ref[2 : len(ref)-1]
		v, ok := p.lookup(name)
		if !ok || v == "" {
			p.addAt(at, "the environment has no %s", name)
		}
		return v
	})
	s.addSecrets(*text, at[len(at)-1] == "url")
}

func (p *checker) checkRule(at []any, r *Rule, sinks map[string]*Sink, kinds []string) {
	under := func(keys ...any) []any { return append(slices.Clone(at), keys...) }
	if len(r.Sinks) == 0 {
		p.addAt(at, "a rule names its sinks")
	}
	for i, name := range r.Sinks {
		if _, ok := sinks[name]; !ok {
			p.addAt(under("sinks", i), "there is no sink %q", name)
		}
	}
	for key, patterns := range map[string][]string{"kind": r.Match.Kind, "flow": r.Match.Flow, "run": r.Match.Run} {
		for i, pattern := range patterns {
			p.checkPattern(under("match", key, i), pattern)
		}
	}
	for i, pattern := range r.Match.Kind {
		matches := func(kind string) bool { ok, err := path.Match(pattern, kind); return ok || err != nil }
		if !slices.ContainsFunc(kinds, matches) {
			p.addAt(under("match", "kind", i), "no alert is of kind %q; there are %s", pattern, strings.Join(kinds, ", "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Match.Label)) {
		p.checkPattern(under("match", "label", name), r.Match.Label[name])
	}
	p.checkSeverity(under("match", "severity"), r.Match.Severity)
	if r.Digest < 0 {
		p.addAt(under("digest"), "digest must not be negative")
	}
	if r.Quiet != nil {
		p.checkQuiet(func(key string) []any { return under("quiet", key) }, r.Quiet)
	}
}

func (p *checker) checkPattern(at []any, pattern string) {
	if _, err := path.Match(pattern, ""); err != nil {
		p.addAt(at, "%q is no pattern: *, ? and [a-z]; \\ takes their meaning away", pattern)
	}
}

func (p *checker) checkSeverity(at []any, s wire.Severity) {
	if s != "" && !slices.Contains(severities, s) {
		p.addAt(at, "severity %q is unknown; it is info, warning, error or critical", s)
	}
}

func (p *checker) checkQuiet(under func(string) []any, q *Quiet) {
	before := p.Count()
	p.checkSeverity(under("pass"), q.Pass)
	p.checkSeverity(under("drop"), q.Drop)
	q.from, q.to = p.parseClock(under("from"), q.From), p.parseClock(under("to"), q.To)
	if (q.From == "") != (q.To == "") {
		p.addAt(under("from"), "from and to go together")
	}
	for _, d := range q.Days {
		if !slices.Contains([]string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}, d) {
			p.addAt(under("days"), "day %q is unknown; it is mon, tue, wed, thu, fri, sat or sun", d)
		}
	}
	zone, err := time.LoadLocation(q.Zone)
	if err != nil {
		p.addAt(under("zone"), "time zone %q is unknown; it is such as Europe/Berlin or UTC", q.Zone)
	}
	if q.zone = zone; q.Zone == "" {
		q.zone = time.Local
	}
	if q.Days = slices.Compact(slices.Sorted(slices.Values(q.Days))); p.Count() == before && q.isEndless() {
		p.addAt(under("from"), "these quiet hours never end")
	}
	q.Pass = cmp.Or(q.Pass, wire.SeverityCritical)
}

var clockPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([01]\d|2[0-3]):([0-5]\d)$`) })

func (p *checker) parseClock(at []any, s string) time.Duration {
	if s == "" {
		return 0
	}
	m := clockPattern().FindStringSubmatch(s)
	if m == nil {
		p.addAt(at, "%q is no time of day; it is such as \"22:00\"", s)
		return 0
	}
	h, _ := strconv.Atoi(m[1]) // the pattern has only digits
	minutes, _ := strconv.Atoi(m[2])
	return time.Duration(h)*time.Hour + time.Duration(minutes)*time.Minute
}

// settle is how long a file that is being written is left alone.
const settle = 100 * time.Millisecond

// Watch calls changed with the content of a file whenever that isn't what it was,
// until ctx ends. Old is what it was. The file may be replaced, or be a link that
// is set elsewhere, as Kubernetes does. A file that can't be read hasn't changed.
func Watch(ctx context.Context, file string, old []byte, changed func([]byte)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	defer func() { _ = w.Close() }() // nothing of it is needed any more
	if err := w.Add(filepath.Dir(file)); err != nil {
		return fmt.Errorf("watch %s: %w", file, err)
	}
	look := time.NewTimer(settle) // it may have changed before it was watched
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Errors: //nolint:errcheck // it says that events may be lost: look
			look.Reset(settle)
		case <-w.Events:
			look.Reset(settle)
		case <-look.C:
			if now, err := os.ReadFile(file); err == nil && !bytes.Equal(now, old) {
				old = now
				changed(now)
			}
		}
	}
}

// minSecret is the length from which a part of an URL may be a secret. What is
// shorter is part of many words.
const minSecret = 4

// publicWords are words of URLs that say nothing.
var publicWords = []string{"http", "https", "hook", "hooks", "webhook", "scheme", "disabletls", "true", "token"}

// addSecrets notes that a text must not be shown, and neither must the parts of an URL,
// but for its scheme.
func (s *Sink) addSecrets(text string, isURL bool) {
	if isURL {
		if _, rest, ok := strings.Cut(text, "://"); ok {
			text = rest
		}
		if u, err := url.Parse("x://" + text); err == nil && sinkKinds()[s.Type].openHost {
			text = u.User.String() + " " + u.Path + " " + u.RawQuery // the host may be shown
		}
	}
	for _, form := range []string{text, unescapeQuery(text)} {
		parts := strings.FieldsFunc(form, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		for _, p := range append(parts, form) {
			if len(p) >= minSecret && !slices.Contains(publicWords, p) {
				s.secrets = append(s.secrets, p)
			}
		}
	}
	slices.SortFunc(s.secrets, func(a, b string) int { return len(b) - len(a) })
	s.secrets = slices.Compact(s.secrets)
}

func unescapeQuery(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	return s
}
