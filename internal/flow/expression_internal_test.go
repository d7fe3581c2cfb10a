package flow

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"code.wake.dev/wake/pkg/wire"
)

func testScope(t testing.TB) *scope {
	t.Helper()
	return &scope{
		state: &wire.State{
			State: mustJSON(t, `{"n":3,"big":9007199254740993,"list":[],"one":[1],"objects":[{"d":true,"t":"x"},{"d":false,"t":"y"}],"none":null,"text":"80"}`),
			Input: mustJSON(t, `{"task":"build"}`),
			Outputs: map[string]wire.Raw{
				"a":       mustJSON(t, `{"score":85,"tags":["x","y"]}`),
				"my-node": mustJSON(t, `{"v":[{"w":1},{"w":2}]}`),
				"dead":    wire.Null,
			},
		},
		item: "task", value: mustJSON(t, `{"id":7}`),
		vars: map[string]any{"iteration": 1.0, "first": false, "last": true, "maxIterations": 2.0},
		now:  1000, cache: map[*byte]any{},
	}
}

var testNames = names{
	nodes: []string{"a", "my-node", "dead", "later"},
	roots: []string{"outputs", "state", "input", "a", "my-node", "dead", "later", "task"},
}

func mustJSON(t testing.TB, src string) wire.Raw {
	t.Helper()
	v, err := wire.RawFromJSON([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// What expressions come to; "nothing" is no value.
func TestExpressions(t *testing.T) {
	tests := []struct{ src, want string }{
		{"state.n", "3"},
		{"state.big", "9007199254740993"}, // what is only passed on stays exact
		{"state.list", "[]"},              // and an empty list a list
		{"state.one", "[1]"},
		{"state.none", "null"},
		{"state.nope", "nothing"},
		{"state.nope.deep", "nothing"},
		{"state.n.deep", "nothing"},
		{"dead", "null"},
		{"dead.x", "nothing"},
		{"later.text", "nothing"},
		{"a.score", "85"},
		{"outputs.a.score", "85"},
		{"outputs.a", `{"score":85,"tags":["x","y"]}`},
		{"outputs.`my-node`.v.w", "[1,2]"},
		{"`my-node`.v[1].w", "2"},
		{"task.id", "7"},
		{"input.task & '!'", `"build!"`},
		{"$iteration < $maxIterations and $last", "true"},
		{"0.1 + 0.2", "0.30000000000000004"},
		{"1/3", "0.3333333333333333"},
		{"a.score >= 80", "true"},
		{"$number(state.text) >= 80", "true"},
		{"state.none = null", "true"},
		{"state.nope = null", "false"},
		{"$exists(state.none)", "true"},
		{"state.list = []", "false"}, // an empty list at the end of a path is nothing
		{"$count(state.list)", "0"},
		{"state.list ?? 'none'", `"none"`}, // as everywhere
		{"state.nope ?? state.none ?: a.score", "85"},
		{"$map(a.tags, function($v){ $v.none ?? $v })", `["x","y"]`},
		{"state.objects[d=false].t", `"y"`},
		{"[state.objects[d=false]]", `[{"d":false,"t":"y"}]`},
		{"[state.objects[t='z']]", "[]"},
		{"state.objects[t='z']", "nothing"},
		{"state.objects.t", `["x","y"]`},
		{"$map(state.one, function($v){ $v + 1 })", "[2]"},
		{"$filter(state.objects, function($v){ $v.d }).t", `"x"`},
		{"$reduce([1..4], function($x, $y){ $x + $y })", "10"},
		{"$sort(a.tags, function($l, $r){ $l < $r })", `["y","x"]`},
		{"$map(a.tags, $uppercase)", `["X","Y"]`},
		{"a.tags ~> $count()", "2"},
		{"$merge([a, {'score': 1}])", `{"score":1,"tags":["x","y"]}`},
		{"($x := state.n; $y := $x * 2; $y)", "6"},
		{"$merge([{'a':1},{'b':2}])", `{"a":1,"b":2}`},
		{"$keys(a)", `["score","tags"]`},
		{"$each({'b': 1, 'a': 2}, function($v, $k){ $k & $v })", `["a2","b1"]`},
		{"$sift(a, function($v){ $v = 85 })", `{"score":85}`},
		{"$split('a,b', ',')", `["a","b"]`},
		{"$replace('aXa', /x/i, 'y')", `"aya"`},
		{"$millis()", "1000"},
		{"$now()", `"1970-01-01T00:00:01.000Z"`},
		{"$pad('x', 3, '-')", `"x--"`},
		{"state.n ? 'yes' : 'no'", `"yes"`},
		{"'a' in a.tags", "false"},
		{"'x' in a.tags", "true"},
		{`"a /* no comment */ b"`, `"a /* no comment */ b"`},
		{"$string(state.objects[0])", `"{\"d\":true,\"t\":\"x\"}"`},
	}
	for _, test := range tests {
		t.Run(test.src, func(t *testing.T) {
			x, err := compileExpression(test.src, testNames)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				v, err := x.eval(testScope(t))
				if err != nil {
					t.Fatal(err)
				}
				if got := shown(t, v); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			}
		})
	}
}

func shown(t testing.TB, v wire.Raw) string {
	t.Helper()
	if v == nil {
		return "nothing"
	}
	b, err := wire.AppendJSON(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What an evaluation refuses: an error, not a panic and not a long time.
func TestExpressionErrors(t *testing.T) {
	for _, src := range []string{
		"a.tags * 2", "a.score > 'x'", "$error('no')", "$pad('x', 1000000000)", "$number('x')", "1/0", "$power(10, 1000)",
		"$toMillis('x')", "$sort(state.objects)", "$single(a.tags, function($v){ true })",
	} {
		x, err := compileExpression(src, testNames)
		if err != nil {
			t.Fatal(err)
		}
		if v, err := x.eval(testScope(t)); err == nil {
			t.Errorf("%s: got %s, want an error", src, shown(t, v))
		} else if !strings.HasPrefix(err.Error(), src+": ") {
			t.Errorf("%s: the error does not name it: %v", src, err)
		}
	}
}

// Whatever would let an expression reach itself is refused before it runs (the
// library has no bound, and its stack is the process's), and so is what would
// come to another value each time.
func TestExpressionsEnd(t *testing.T) {
	for _, src := range []string{
		"($f := function($x){ $f($x) }; $f(1))",
		"($f := λ($x){ $f($x) }; $f(1))",
		"(function($f){ $f($f) })(function($f){ $f($f) })",
		"$map([1], function($v){ $v($v) })",
		"($f := $string; $f(1))",
		"($m := $map; $m([1], $m))",
		"$map([1], $map)",
		"[$string]",
		"{'f': function($x){ $x }}",
		"$map(?, $string)",
		"($g := $map(?, $string); $g([1]))",
		"$string ~> $string",
		"state ~> function($x){ $x }",
		"($map := function($x){ $x }; $map(1))",
		"$map([1], function($string){ $string })",
		"[1..state.n]",
		"[1..1000000]",
		"[state.n..5]",
		"$shuffle([1])",
		"$random()",
		"$eval('1')",
		"a ~> |$|{'x': $}|",
		"a.*",
		"**.t",
		"$spread(a)",
		"$assert(false)",
		strings.Repeat("(", 3000) + "1" + strings.Repeat(")", 3000),
		strings.Repeat("-", 5000) + "1",
	} {
		if _, err := compileExpression(src, testNames); err == nil {
			t.Errorf("%.60s was accepted", src)
		}
	}
}

func TestExpressionsNest(t *testing.T) {
	src := strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000)
	x, err := compileExpression(src, testNames)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := x.eval(testScope(t)); err != nil || shown(t, v) != "1" {
		t.Errorf("got %v, %v", v, err)
	}
}

// Values are decoded once and shared by all expressions of a decision, so no
// expression may change them.
func TestExpressionsDoNotChangeTheirData(t *testing.T) {
	s := testScope(t)
	before := fmt.Sprintf("%#v", s.All())
	for _, src := range []string{
		"$sort(a.tags, function($l, $r){ $l < $r })", "$reverse(a.tags)", "$append(a.tags, 'z')",
		"$merge([a, {'score': 1}])", "state.objects^(>t)",
		"$map(state.objects, function($o){ $o ~> $string })", "$distinct(a.tags)", "$zip(a.tags, a.tags)",
		"$spread(a)", "$sift(a, function($v){ $v = 85 })", "state.objects{t: d}", "$each(a, function($v, $k){ $k })",
	} {
		x, err := compileExpression(src, testNames)
		if err != nil {
			continue
		}
		if _, err := x.eval(s); err != nil {
			t.Errorf("%s: %v", src, err)
		}
		if after := fmt.Sprintf("%#v", s.All()); after != before {
			t.Fatalf("%s changed its data:\n%s\n%s", src, before, after)
		}
	}
}

// Evaluations of one expression share its syntax tree and nothing else.
func TestEvaluationsDoNotMeet(t *testing.T) {
	x, err := compileExpression("a.tags.$uppercase()", testNames)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			s := testScope(t)
			s.state.Outputs["a"] = mustJSON(t, fmt.Sprintf(`{"tags":["t%d","u%d"]}`, i, i))
			want := fmt.Sprintf(`["T%d","U%d"]`, i, i)
			for range 200 {
				v, err := x.eval(s)
				if err != nil {
					t.Error(err)
					return
				}
				if got := shown(t, v); got != want {
					t.Errorf("got %s, want %s", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestSplit(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "''"},
		{"plain", "'plain'"},
		{"{{ a }}", "< a >"},
		{"x {{a}} y {{ b }}", "'x '<a>' y '< b >"},
		{`{{ {"x": {"y": 1}} }}`, `< {"x": {"y": 1}} >`},
		{`{{ "}}" & '}}' }}!`, `< "}}" & '}}' >'!'`},
		{`{{ "\"}}" }}`, `< "\"}}" >`},
		{"{{ `a}}b` }}", "< `a}}b` >"},
		{`\{{ a }}`, "'{{ a }}'"},
		{`\{{ {{ a }}`, "'{{ '< a >"},
		{"{ {a} }", "'{ {a} }'"},
		{"{{ a", "error"},
		{"{{ '}}", "error"},
		{"a }} b", "'a }} b'"},
	}
	for _, test := range tests {
		segments, err := splitText(test.text)
		var got strings.Builder
		for _, s := range segments {
			if s.isExpr() {
				fmt.Fprintf(&got, "<%s>", s.expr.src)
			} else {
				fmt.Fprintf(&got, "'%s'", s.text)
			}
		}
		if err != nil {
			got.WriteString("error")
		}
		if got.String() != test.want {
			t.Errorf("%q: got %s, want %s", test.text, got.String(), test.want)
		}
	}
}

// No text makes a compiler or an evaluation panic, or need more than its budget, and evaluating it
// twice gives the same.
func FuzzExpression(f *testing.F) {
	for _, src := range []string{
		"a.score >= 80", "$map(a.tags, function($v){ $v & 'x' })", "state.objects^(>t){t: $sum(d)}", "a ~> |$|{'x':1}|",
		"$.a[0].**.*", "($x := 1; $x)", "/x/i", "[1..3].($)", "`my-node`", "a.tags[-1]", "{'a': $}", "$$.state", "-1 ? 2 : 3",
		"$formatNumber(1, '#')", "$fromMillis(1, '[Y]')", "$match('abc', /b/)", "$lookup(state, 'n')", "$string()",
		"$reduce([1..40], function($a,$b){ $a & $a }, 'xxxxxxxx')", "$pad(a.tags[0], 1000000000, 'ab')", "$string($reduce([1..9], function($a,$b){ {'x': $a, 'y': $a} }, 1))",
		"$replace('aaaa', /(a*)*/, '$1$0')", "$split('aab', '')", "$zip(a.tags, [1..10000])", "$sort([3,1,2], function($l, $r){ $l > $r })",
		"/A/!\u0557", "a ~> |$|{'x':$}|", "*", "$.a[0].**.*",
		"a.none ?? state.n ?: 1", "$map(a.tags, function($v)<s?:s>{ $v ?: 'x' ?? /[/]/ })[0] ? a ?? 1 : [{'k': a ?? 1}, a ?: 2]", "`?:` ??", "?: ?? (",
	} {
		f.Add(src)
	}
	s := testScope(f)
	f.Fuzz(func(t *testing.T, src string) {
		x, err := compileExpression(src, testNames)
		if err != nil {
			return
		}
		s.budget = nil
		one, err1 := x.eval(s)
		s.budget = nil
		two, err2 := x.eval(s)
		if (err1 == nil) != (err2 == nil) || !bytes.Equal(one, two) {
			t.Errorf("%q: %s and %v, then %s and %v", src, shown(t, one), err1, shown(t, two), err2)
		}
	})
}

// What most flows say: a path, a comparison, a text of two parts.
func BenchmarkExpression(b *testing.B) {
	for _, src := range []string{"a.score", "a.score >= 80", "input.task & '!'", "a.score >= 80 and 'x' in a.tags", "state.objects[d=false].t"} {
		b.Run(src, func(b *testing.B) {
			x, err := compileExpression(src, testNames)
			if err != nil {
				b.Fatal(err)
			}
			s := testScope(b)
			b.ReportAllocs()
			for b.Loop() {
				s.budget, s.all, s.cache = nil, nil, map[*byte]any{}
				if v, err := x.eval(s); err != nil || v == nil {
					b.Fatal(v, err)
				}
			}
		})
	}
}
