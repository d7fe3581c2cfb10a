package jsonata_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/blues/jsonata-go/jparse"

	"code.wake.dev/wake/internal/jsonata"
)

// object is data that is there already.
type object map[string]any

func (o object) Get(name string) (any, bool) { v, ok := o[name]; return v, ok }
func (o object) All() map[string]any         { return o }

func data() object {
	return object{
		"zero": 0.0, "empty": "", "el": []any{}, "no": false, "n": 3.0, "text": "a b", "none": nil, "list": []any{1.0, 2.0, 3.0},
		"object":  map[string]any{"b": 1.0, "a": "x"},
		"objects": []any{map[string]any{"t": "x", "d": true}, map[string]any{"t": "y", "d": false}},
		"large":   strings.Repeat("aaaaaaaa", 1<<15),
	}
}

func parse(t testing.TB, src string) jparse.Node {
	t.Helper()
	node, err := jsonata.Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	return node
}

func scope(b *jsonata.Budget) jsonata.Scope { return jsonata.Scope{Data: data(), Now: 1000, Budget: b} }

// nested is a loop in a loop in a loop, each over n numbers.
func nested(n int) string {
	return fmt.Sprintf("$reduce([1..%[1]d], function($a,$b){ $reduce([1..%[1]d], function($c,$d){ $reduce([1..%[1]d],function($e,$f){$e+1},0) },0) },0)", n)
}

// An evaluation that needs more than its budget is an error, soon, and takes no more memory than that.
func TestBudget(t *testing.T) {
	tests := []struct{ src, over string }{
		{"$reduce([1..40], function($a,$b){ $a & $a }, 'xxxxxxxx')", "memory"},
		{"$reduce([1..40], function($a,$b){ $append($a, $a) }, [1])", "memory"},
		{"$reduce([1..40], function($a,$b){ [$a, $a] }, [1])", "memory"},
		{"$string($reduce([1..40], function($a,$b){ {'x': $a, 'y': $a} }, 1))", "steps"},
		{"$reduce([1..40], function($a,$b){ {'x': $a, 'y': $a} }, 1)", "memory"},
		{"$reduce([1..2000], function($a,$b){ {'x': $a} }, 1)", "depth"},
		{"$reduce([1..2000], function($a,$b){ [[$a]] }, [1]).x", "depth"},
		{nested(300), "steps"},
		{"($f := function($f, $n){ $f($f, $n) + $f($f, $n) }; $f($f, 1))", "depth"},
		{"[1..100000000]", "memory"},
		{"$pad('x', 1000000000)", "memory"},
		{"$join($map([1..10000], function($i){ $pad('x', 10000) }))", "memory"},
		{"$map([1..10000], function($i){ large & $i })", "memory"},
		{"$replace(large, /a/, large)", "memory"},
		{"$match(large, /()()()()()()()()()()()()()()()()()()()()()()()()()/)", "memory"},
		{"$contains(large, /(a{90}){10}b/)", "steps"},
		{"$sort([1..100000], function($l, $r){ $l < $r })", "steps"},
		{"$map([1..1000], function($a){ $map([1..1000], function($b){ objects.t }) })", "steps"},
		{"[1..10000][[1..10000]]", "steps"},
		{"$match(large, /((((((a*)*)*)*)*)*)*$/)[0].groups[0] = ''", ""},
	}
	for _, test := range tests {
		t.Run(fmt.Sprintf("%.50s", test.src), func(t *testing.T) {
			node := parse(t, test.src)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			b := jsonata.NewBudget()
			_, _, err := jsonata.Eval(node, scope(b))
			runtime.ReadMemStats(&after)
			if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 400 {
				t.Errorf("took %d MiB", made)
			}
			if test.over == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			over, is := errors.AsType[*jsonata.BudgetError](err)
			if !is || !strings.Contains(over.Over, test.over) || b.Spent() != 1 {
				t.Errorf("got %v, want over %s", err, test.over)
			}
		})
	}
}

// What several expressions make counts together, and what is over stays over.
func TestBudgetIsShared(t *testing.T) {
	b := jsonata.NewBudget()
	node := parse(t, "large & large")
	var err error
	for range 1000 {
		if _, _, err = jsonata.Eval(node, scope(b)); err != nil {
			break
		}
	}
	if _, is := errors.AsType[*jsonata.BudgetError](err); !is || b.Spent() != 1 {
		t.Errorf("%v, spent %v", err, b.Spent())
	}
	if _, _, err := jsonata.Eval(node, scope(b)); err == nil {
		t.Error("there is budget left")
	}
}

// A pattern that compiling would make large is refused before.
func TestCheckPatterns(t *testing.T) {
	for src, want := range map[string]bool{
		"$match(a, /x{3}/)": true, "'{5000000}'": true, "a / b": true, "$match(a, /[0-9]{1,4}-[0-9]{2}/)": true,
		"$match(a, /(x{999}){999}/)": false, "$match(a, /(" + strings.Repeat("abc", 1000) + "){1000}/)": false,
		"$match(a, /x{99999999999999999999}/)": true, // which is no pattern
	} {
		_, err := jsonata.Parse(src)
		if ok := err == nil || !strings.Contains(err.Error(), "repeats too much"); ok != want {
			t.Errorf("%.40s: %v", src, err)
		}
	}
}

func BenchmarkEval(b *testing.B) {
	for _, src := range []string{
		"object.a", "n >= 80", "n & '!'", "object.a = 'x' and n > 2", "objects[d=false].t", "$map(objects, function($o){ $o.t & 'x' })", nested(20),
	} {
		b.Run(fmt.Sprintf("%.40s", src), func(b *testing.B) {
			node, s := parse(b, src), scope(nil)
			b.ReportAllocs()
			for b.Loop() {
				s.Budget = jsonata.NewBudget()
				if _, _, err := jsonata.Eval(node, s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
