package deliver

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

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
type Section interface{ Validate() error }

// Parse reads the rules of a file. What stands under "detectors" it decodes into
// detectors. ${VAR} in URLs, secrets, headers and environments is looked up. The
// error has a line FILE:LINE: MESSAGE for each problem, and no secrets.
func Parse(file string, src []byte, lookup func(string) (string, bool), detectors Section) (*Rules, error) {
	p := &problems{lookup: lookup}
	r := p.parseRules(src, detectors)
	if len(p.list) == 0 {
		return r, nil
	}
	slices.SortStableFunc(p.list, func(a, b problem) int { return a.line - b.line })
	errs := make([]error, len(p.list))
	for i, problem := range p.list {
		errs[i] = fmt.Errorf("%s:%d: %s", file, problem.line, problem.text)
	}
	return nil, errors.Join(errs...)
}

// problems collects what is wrong with a file.
type problems struct {
	lookup func(string) (string, bool)
	root   ast.Node
	list   []problem
}

type problem struct {
	line int
	text string
}

func (p *problems) addLine(line int, format string, args ...any) {
	p.list = append(p.list, problem{line, fmt.Sprintf(format, args...)})
}

// addAt notes a problem of the value under some keys and indexes, or of what is
// nearest to it.
func (p *problems) addAt(at []any, format string, args ...any) {
	line := 1
	n := p.root
	for _, step := range at {
		value, place := childNode(n, step)
		if value == nil {
			break
		}
		n, line = value, lineOf(place)
	}
	p.addLine(line, format, args...)
}

func lineOf(t *token.Token) int {
	line, _ := document.Place(t)
	return line
}

// childNode returns the value under a key or an index, and where it is.
func childNode(n ast.Node, step any) (ast.Node, *token.Token) {
	if anchor, ok := n.(*ast.AnchorNode); ok {
		n = anchor.Value
	}
	switch step := step.(type) {
	case string:
		for _, v := range mappingEntries(n) {
			if key := v.Key.GetToken(); key != nil && key.Value == step {
				return v.Value, key
			}
		}
	case int:
		if s, ok := n.(*ast.SequenceNode); ok && step < len(s.Values) {
			return s.Values[step], s.Values[step].GetToken()
		}
	}
	return nil, nil
}

func mappingEntries(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// parseRules decodes and checks the file. The decoder's defects must not end the process.
func (p *problems) parseRules(src []byte, detectors Section) (r *Rules) {
	defer func() {
		if recover() != nil {
			p.addLine(1, "malformed YAML")
		}
	}()
	if len(src) > maxFile {
		p.addLine(1, "the file has %d bytes, at most %d are allowed", len(src), maxFile)
		return nil
	}
	root, err := document.Parse(src)
	if e, ok := errors.AsType[*document.Error](err); ok {
		p.addLine(e.Line, "%s", e.Message)
		return nil
	}
	r = &Rules{}
	if p.root = root; root == nil || root.Type() == ast.NullType {
		return r
	}
	if t := root.Type(); t != ast.MappingType && t != ast.MappingValueType {
		p.addLine(lineOf(root.GetToken()), "the rules are an object with sinks and rules")
		return r
	}
	body, section := p.splitDetectors()
	if section != nil {
		if err := yaml.NodeToValue(section, detectors, yaml.Strict()); err != nil {
			p.addDecoderError(err)
		} else if err := detectors.Validate(); err != nil {
			p.addDetectorProblems(err)
		}
	}
	if len(body.Values) > 0 {
		if err := yaml.NodeToValue(body, r, yaml.Strict()); err != nil {
			p.addDecoderError(err)
			return nil
		}
	}
	p.checkRules(r)
	return r
}

// addDetectorProblems notes the problems of the detectors where their fields are.
func (p *problems) addDetectorProblems(err error) {
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

// splitDetectors returns the file without the section of the detectors, and that.
func (p *problems) splitDetectors() (body *ast.MappingNode, section ast.Node) {
	body = ast.Mapping(p.root.GetToken(), false)
	for _, v := range mappingEntries(p.root) {
		if v.Key.GetToken().Value == "detectors" {
			section = v.Value
			continue
		}
		body.Values = append(body.Values, v)
	}
	if section != nil && section.Type() == ast.NullType {
		section = nil
	}
	return body, section
}

// addDecoderError notes what the decoder says, without the lines of the file that it would
// show.
func (p *problems) addDecoderError(err error) {
	var e yaml.Error
	if !errors.As(err, &e) {
		p.addQuotedError(err.Error())
		return
	}
	message := e.GetMessage()
	if t, ok := errors.AsType[*yaml.TypeError](err); ok {
		message = fmt.Sprintf("a %s is expected here", plainType(t.DstType.String()))
	}
	p.addLine(lineOf(e.GetToken()), "%s", message)
}

// addQuotedError notes a problem that quotes the value it is about, as those of spans of
// time do.
func (p *problems) addQuotedError(message string) {
	rest, ok := strings.CutSuffix(message, `"`) // the value is the last that it quotes; a unit may be before
	i := strings.LastIndex(rest, `"`)
	if !ok || i < 0 || p.root == nil {
		p.addLine(1, "%s", message)
		return
	}
	value, line := rest[i+1:], 1
	ast.Walk(finder(func(n ast.Node) {
		if t := n.GetToken(); t != nil && t.Value == value && line == 1 {
			line = lineOf(t)
		}
	}), p.root)
	p.addLine(line, "%q is no span of time such as 90s, 5m or 24h", value)
}

type finder func(ast.Node)

// Visit implements [ast.Visitor].
func (f finder) Visit(n ast.Node) ast.Visitor {
	f(n)
	return f
}

// plainType is the word for a type of Go.
func plainType(t string) string {
	switch {
	case t == "time.Duration":
		return "span of time such as 90s, 5m or 24h"
	case strings.HasPrefix(t, "int"), strings.HasPrefix(t, "uint"):
		return "whole number"
	case strings.HasPrefix(t, "float"):
		return "number"
	case strings.HasPrefix(t, "[]"):
		return "list"
	case t == "bool":
		return "true or false"
	case t == "string", strings.HasSuffix(t, "Severity"):
		return "text"
	}
	return "mapping"
}

var namePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`) })

func (p *problems) checkRules(r *Rules) {
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
		p.checkRule(at, rule, r.Sinks)
	}
}

func (p *problems) checkSink(at []any, s *Sink) {
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
	if s.Attempts < 0 {
		p.addAt(under("attempts"), "attempts must not be negative")
	}
	if s.Expire < 0 {
		p.addAt(under("expire"), "expire must not be negative")
	}
	if s.Rate != nil && (s.Rate.Count < 1 || s.Rate.Per < time.Second) {
		p.addAt(under("rate"), "a rate is {count: at least 1, per: at least 1s}")
	}
}

// checkSinkType checks what depends on the type of a sink.
func (p *problems) checkSinkType(under func(string) []any, s *Sink) {
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
func (p *problems) expandVariables(at []any, s *Sink, text *string) {
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

func (p *problems) checkRule(at []any, r *Rule, sinks map[string]*Sink) {
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

func (p *problems) checkPattern(at []any, pattern string) {
	if _, err := path.Match(pattern, ""); err != nil {
		p.addAt(at, "%q is no pattern: *, ? and [a-z]; \\ takes their meaning away", pattern)
	}
}

func (p *problems) checkSeverity(at []any, s wire.Severity) {
	if s != "" && !slices.Contains(severities, s) {
		p.addAt(at, "severity %q is unknown; it is info, warning, error or critical", s)
	}
}

func (p *problems) checkQuiet(under func(string) []any, q *Quiet) {
	before := len(p.list)
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
	if q.Days = slices.Compact(slices.Sorted(slices.Values(q.Days))); len(p.list) == before && q.isEndless() {
		p.addAt(under("from"), "these quiet hours never end")
	}
	if q.Pass == "" {
		q.Pass = wire.SeverityCritical
	}
}

var clockPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([01]\d|2[0-3]):([0-5]\d)$`) })

func (p *problems) parseClock(at []any, s string) time.Duration {
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
