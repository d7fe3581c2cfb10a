package deliver

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"wake/pkg/wire"
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
	r := p.read(src, detectors)
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

// add notes a problem of the value under some keys and indexes, or of what is
// nearest to it.
func (p *problems) add(at []any, format string, args ...any) {
	line := 1
	n := p.root
	for _, step := range at {
		value, place := child(n, step)
		if value == nil {
			break
		}
		n, line = value, lineOf(place)
	}
	p.addLine(line, format, args...)
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 1
	}
	return t.Position.Line
}

// child returns the value under a key or an index, and where it is.
func child(n ast.Node, step any) (ast.Node, *token.Token) {
	if anchor, ok := n.(*ast.AnchorNode); ok {
		n = anchor.Value
	}
	switch step := step.(type) {
	case string:
		for _, v := range entries(n) {
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

func entries(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

// read decodes and checks the file. The parser's defects must not end the process.
func (p *problems) read(src []byte, detectors Section) (r *Rules) {
	defer func() {
		if recover() != nil {
			p.addLine(1, "malformed YAML")
		}
	}()
	if len(src) > maxFile {
		p.addLine(1, "the file has %d bytes, at most %d are allowed", len(src), maxFile)
		return nil
	}
	file, err := parser.ParseBytes(src, 0)
	if err != nil {
		p.wrong(err)
		return nil
	}
	r = &Rules{}
	if !p.document(file) {
		return r
	}
	body, section := p.split()
	if section != nil {
		if err := yaml.NodeToValue(section, detectors, yaml.Strict()); err != nil {
			p.wrong(err)
		} else if err := detectors.Validate(); err != nil {
			p.section(err)
		}
	}
	if len(body.Values) > 0 {
		if err := yaml.NodeToValue(body, r, yaml.Strict()); err != nil {
			p.wrong(err)
			return nil
		}
	}
	p.check(r)
	return r
}

// section notes the problems of the detectors where their fields are.
func (p *problems) section(err error) {
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
		p.add(at, "detectors: %s", line)
	}
}

// document finds the one document. An empty file has no rules.
func (p *problems) document(file *ast.File) bool {
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType || d.Body.Type() == ast.CommentGroupType || d.Body.Type() == ast.NullType {
			continue
		}
		if p.root != nil {
			p.addLine(lineOf(d.Body.GetToken()), "a second document; the rules are one")
			return false
		}
		p.root = d.Body
	}
	if p.root == nil {
		return false
	}
	if t := p.root.Type(); t != ast.MappingType && t != ast.MappingValueType {
		p.addLine(lineOf(p.root.GetToken()), "the rules are an object with sinks and rules")
		return false
	}
	return true
}

// split returns the file without the section of the detectors, and that.
func (p *problems) split() (body *ast.MappingNode, section ast.Node) {
	body = ast.Mapping(p.root.GetToken(), false)
	for _, v := range entries(p.root) {
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

// wrong notes what the decoder says, without the lines of the file that it would
// show.
func (p *problems) wrong(err error) {
	var e yaml.Error
	if !errors.As(err, &e) {
		p.unplaced(err.Error())
		return
	}
	message := e.GetMessage()
	if t, ok := errors.AsType[*yaml.TypeError](err); ok {
		message = fmt.Sprintf("a %s is expected here", plain(t.DstType.String()))
	}
	p.addLine(lineOf(e.GetToken()), "%s", message)
}

// unplaced notes a problem that quotes the value it is about, as those of spans of
// time do.
func (p *problems) unplaced(message string) {
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

// plain is the word for a type of Go.
func plain(t string) string {
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

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

func (p *problems) check(r *Rules) {
	for _, name := range slices.Sorted(maps.Keys(r.Sinks)) {
		at := []any{"sinks", name}
		switch {
		case !namePattern.MatchString(name):
			p.add(at, "sink %q: letters, digits, - and _, at most 64, the first a letter or a digit", name)
		case r.Sinks[name] == nil:
			p.add(at, "sink %s is empty", name)
		default:
			p.sink(at, r.Sinks[name])
		}
	}
	for i, rule := range r.Rules {
		at := []any{"rules", i}
		if rule == nil {
			p.add(at, "a rule is empty")
			continue
		}
		p.rule(at, rule, r.Sinks)
	}
}

func (p *problems) sink(at []any, s *Sink) {
	under := func(key string) []any { return append(slices.Clone(at), key) }
	p.expand(under("url"), s, &s.URL)
	p.expand(under("secret"), s, &s.Secret)
	for _, fields := range []struct {
		key    string
		values map[string]string
	}{{"headers", s.Headers}, {"env", s.Env}} {
		for _, k := range slices.Sorted(maps.Keys(fields.values)) {
			v := fields.values[k]
			p.expand(append(under(fields.key), k), s, &v)
			fields.values[k] = v
		}
	}
	p.typed(under, s)
	if s.Timeout < 0 || s.Timeout > maxTimeout {
		p.add(under("timeout"), "timeout is more than 0 and at most %s", maxTimeout)
	}
	if s.Attempts < 0 {
		p.add(under("attempts"), "attempts must not be negative")
	}
	if s.Expire < 0 {
		p.add(under("expire"), "expire must not be negative")
	}
	if s.Rate != nil && (s.Rate.Count < 1 || s.Rate.Per < time.Second) {
		p.add(under("rate"), "a rate is {count: at least 1, per: at least 1s}")
	}
}

// typed checks what depends on the type of a sink.
func (p *problems) typed(under func(string) []any, s *Sink) {
	used := map[string]string{
		TypeTerminal: "", TypeWebhook: "url secret headers", TypeChat: "url", TypeAlertmanager: "url headers", TypeExec: "command env",
	}
	fields, ok := used[s.Type]
	if !ok {
		p.add(under("type"), "type is %s", strings.Join(slices.Sorted(maps.Keys(used)), ", "))
		return
	}
	for _, f := range []struct {
		key string
		set bool
	}{{"url", s.URL != ""}, {"secret", s.Secret != ""}, {"headers", s.Headers != nil}, {"command", s.Command != nil}, {"env", s.Env != nil}} {
		if f.set && !slices.Contains(strings.Fields(fields), f.key) {
			p.add(under(f.key), "a sink of type %s has no %s", s.Type, f.key)
		}
	}
	switch s.Type {
	case TypeWebhook, TypeAlertmanager:
		p.web(under, s)
	case TypeChat:
		if err := checkChat(s.URL); err != nil {
			p.add(under("url"), "%s", s.scrub(err.Error()))
		}
	case TypeExec:
		if len(s.Command) == 0 || s.Command[0] == "" {
			p.add(under("command"), "command is a list: the program and its arguments")
		}
		for _, name := range []string{"PATH", "HOME", "LANG", "TZ"} {
			if v, ok := p.lookup(name); ok {
				s.base = append(s.base, name+"="+v)
			}
		}
	}
}

func (p *problems) web(under func(string) []any, s *Sink) {
	if u, err := url.Parse(s.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.add(under("url"), "url begins with http:// or https:// and a host")
	}
	if s.Secret == "" {
		return
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(s.Secret, "whsec_"))
	if err != nil || len(key) < 24 || len(key) > 64 {
		p.add(under("secret"), "secret is whsec_ and 24 to 64 bytes in base64, such as `openssl rand -base64 32` gives")
	}
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// expand replaces ${VAR}, and notes what of a text must not be shown.
func (p *problems) expand(at []any, s *Sink, text *string) {
	*text = variable.ReplaceAllStringFunc(*text, func(ref string) string {
		name := ref[2 : len(ref)-1]
		v, ok := p.lookup(name)
		if !ok || v == "" {
			p.add(at, "the environment has no %s", name)
		}
		return v
	})
	s.hide(*text, at[len(at)-1] == "url")
}

func (p *problems) rule(at []any, r *Rule, sinks map[string]*Sink) {
	under := func(keys ...any) []any { return append(slices.Clone(at), keys...) }
	if len(r.Sinks) == 0 {
		p.add(at, "a rule names its sinks")
	}
	for i, name := range r.Sinks {
		if _, ok := sinks[name]; !ok {
			p.add(under("sinks", i), "there is no sink %q", name)
		}
	}
	for key, patterns := range map[string][]string{"kind": r.Match.Kind, "flow": r.Match.Flow, "run": r.Match.Run} {
		for i, pattern := range patterns {
			p.pattern(under("match", key, i), pattern)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Match.Label)) {
		p.pattern(under("match", "label", name), r.Match.Label[name])
	}
	p.severity(under("match", "severity"), r.Match.Severity)
	if r.Digest < 0 {
		p.add(under("digest"), "digest must not be negative")
	}
	if r.Quiet != nil {
		p.quiet(func(key string) []any { return under("quiet", key) }, r.Quiet)
	}
}

func (p *problems) pattern(at []any, pattern string) {
	if _, err := path.Match(pattern, ""); err != nil {
		p.add(at, "%q is no pattern: *, ? and [a-z]; \\ takes their meaning away", pattern)
	}
}

func (p *problems) severity(at []any, s wire.Severity) {
	if s != "" && !slices.Contains(severities, s) {
		p.add(at, "severity %q is unknown; it is info, warning, error or critical", s)
	}
}

func (p *problems) quiet(under func(string) []any, q *Quiet) {
	before := len(p.list)
	p.severity(under("pass"), q.Pass)
	p.severity(under("drop"), q.Drop)
	q.from, q.to = p.clock(under("from"), q.From), p.clock(under("to"), q.To)
	if (q.From == "") != (q.To == "") {
		p.add(under("from"), "from and to go together")
	}
	for _, d := range q.Days {
		if !slices.Contains([]string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}, d) {
			p.add(under("days"), "day %q is unknown; it is mon, tue, wed, thu, fri, sat or sun", d)
		}
	}
	zone, err := time.LoadLocation(q.Zone)
	if err != nil {
		p.add(under("zone"), "time zone %q is unknown; it is such as Europe/Berlin or UTC", q.Zone)
	}
	if q.zone = zone; q.Zone == "" {
		q.zone = time.Local
	}
	if q.Days = slices.Compact(slices.Sorted(slices.Values(q.Days))); len(p.list) == before && q.always() {
		p.add(under("from"), "these quiet hours never end")
	}
	if q.Pass == "" {
		q.Pass = wire.SeverityCritical
	}
}

var clockPattern = regexp.MustCompile(`^([01]\d|2[0-3]):([0-5]\d)$`)

func (p *problems) clock(at []any, s string) time.Duration {
	if s == "" {
		return 0
	}
	m := clockPattern.FindStringSubmatch(s)
	if m == nil {
		p.add(at, "%q is no time of day; it is such as \"22:00\"", s)
		return 0
	}
	h, _ := strconv.Atoi(m[1]) // the pattern has only digits
	minutes, _ := strconv.Atoi(m[2])
	return time.Duration(h)*time.Hour + time.Duration(minutes)*time.Minute
}
