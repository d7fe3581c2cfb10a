package jsonata_test

import (
	"encoding/json"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/jsonata"
)

// ?? and ?: come to what they do in jsonata 2.1.1 of npm.
func TestFallbacks(t *testing.T) {
	for src, want := range map[string]string{
		// ?? wants x to be there, ?: to be true.
		"missing ?? 42": "42", "n ?? 42": "3", "none ?? 42": "null", "0 ?? 1": "0", "'' ?? 1": `""`, "false ?? 1": "false", "[] ?? 1": "[]", "missing ?? gone": "",
		"missing ?: 42": "42", "n ?: 42": "3", "none ?: 42": "42", "0 ?: 1": "1", "'' ?: 1": "1", "false ?: 1": "1", "[0] ?: 1": "1", "[0,1] ?: 1": "[0,1]", "{} ?: 1": "1",
		"list[1] ?? 9": "2", "list[5] ?? 9": "9", "objects[t='z'].d ?? 'no'": `"no"`, "missing.x.y ?: 'd'": `"d"`, "missing??1": "1", "n?:1": "3",
		// y is evaluated when it is wanted.
		"n ?? $error('y')": "3", "n ?: $error('y')": "3",
		// They bind as comparisons do, and take all that follows.
		"1 + missing ?? 2": "2", "n = missing ?? 2": "false", "false and missing ?? true": "false", "missing ?? false or true": "true", "missing ?? 'a' & 'b'": `"ab"`,
		"missing ?? gone ?? 3": "3", "missing ?: 0 ?: 'z'": `"z"`, "missing ?? n > 2 ? 'y' : 'z'": `"y"`, "n ?? 1 ? 'p' : 'q'": "3", "missing ?? list ~> $sum()": "6",
		// They end where what surrounds them goes on.
		"n > 2 ? missing ?? 'y' : 'z'": `"y"`, "n > 5 ? 1 : missing ?: 'z'": `"z"`, "missing ? 1 ?? 2 : 3 ?: 4": "3", "(missing ?? 1) + 1": "2", "[missing ?? 1, gone ?: 2]": "[1,2]",
		"[missing ?? 1..3]": "[1,2,3]", "{'a': missing ?? 1, 'b': n ?: 2}": `{"a":1,"b":3}`, "{missing ?? 'k': 1}": `{"k":1}`, "($x := missing ?? 5; $x + 1)": "6",
		"$map(objects, function($o){ $o.z ?? $o.t })": `["x","y"]`, "objects[d ?: t = 'y'].t": `["x","y"]`, "objects^(z ?? t).t": `["x","y"]`, "objects.(z ?? t)": `["x","y"]`,
		"true ? {'a': missing ?? 1} : 2": `{"a":1}`, "list[$ > 5] ?? [$sum(list) ?: 1]": "[6]",
		// Their signs within something else aren't they.
		"'a ?? b' ?? 1": `"a ?? b"`, "`x ?? y` ?: '?:'": `"?:"`, "$contains('a/b??', /[/]b\\?\\?/) ?: 'no'": "true", `"\"?:" ?: 1`: `"\"?:"`, "missing ?? 6 / 2 / 3": "1",
		"$map(list, function($v)<n?:n>{ $v > 1 ?: 'no' })": `["no",true,true]`, "missing ?? λ($x)<n?:n>{$x}(7)": "7",
	} {
		v, ok, err := jsonata.Eval(parse(t, src), scope(jsonata.NewBudget()))
		got := ""
		if b, encodeErr := json.Marshal(v); ok && encodeErr == nil {
			got = string(b)
		}
		if err != nil || got != want {
			t.Errorf("%s: got %s and %v, want %s", src, got, err, want)
		}
	}
}

// What differs between implementations is as it is in the language's own, jsonata 2.2.2.
func TestAsTheReference(t *testing.T) {
	for src, want := range map[string]string{
		// An index behind an index is one of the list that the first has found.
		"m[0][1]": "2", "m[0][0]": "1", "m[-1][-1]": "4", "deep.m[1][0]": "3", "m[0]": "[1,2]", "m[1][5]": "", "one[0]": "[7]", "one[0][0]": "7", "list[$>1][0]": "2",
		// The items that an object is made of are a list where they are several.
		"list.{'a': $}": `[{"a":1},{"a":2},{"a":3}]`, "list.{'b': $*2}": `[{"b":2},{"b":4},{"b":6}]`, "list{$string($): $}": `{"1":1,"2":2,"3":3}`, "list{'k': $}": `{"k":[1,2,3]}`,
		"objects.{'t': $.t}": `[{"t":"x"},{"t":"y"}]`, "{'n': $count(list)}": `{"n":3}`,
		// But for these, which come to lists however many items there are: what goes through their items needs one.
		"$filter(list, function($v){$v>2})": "[3]", "$filter(list, function($v){$v>9})": "[]", "$map([5], function($v){$v})": "[5]", "$each({'a':1}, function($v){$v})": "[1]",
		// URLs.
		"$encodeUrl('http://x/?q=1&r=ä b')": `"http://x/?q=1\u0026r=%C3%A4%20b"`, "$encodeUrlComponent('a b&c/d')": `"a%20b%26c%2Fd"`, "$decodeUrlComponent('a+b%20c')": `"a+b c"`, "$decodeUrl('%C3%A4')": `"ä"`,
	} {
		b := jsonata.NewBudget()
		d := data()
		d["m"], d["one"] = []any{[]any{1.0, 2.0}, []any{3.0, 4.0}}, []any{[]any{7.0}}
		d["deep"] = map[string]any{"m": d["m"]}
		v, ok, err := jsonata.Eval(parse(t, src), jsonata.Scope{Data: d, Now: 1000, Budget: b})
		got := ""
		if b, encodeErr := json.Marshal(v); ok && encodeErr == nil {
			got = string(b)
		}
		if err != nil || got != want {
			t.Errorf("%s: got %s and %v, want %s", src, got, err, want)
		}
	}
}

// Mistakes are told in the words of their author. The parser would read the types of the last ones for ever.
func TestParseErrors(t *testing.T) {
	for src, want := range map[string]string{
		"?? 1": "nothing on its left", "n and ?: 1": "nothing on its left", "n ??": "nothing on its right", "(n ?: )": "nothing on its right", "n ? 1 ?? : 2": "nothing on its right",
		"[n ??, 1]": "nothing on its right", "n ?: 1 : 3": "syntax error",
		"!n": "no operator !", "n ~ 1": "no operator ~", "function($x)<a!:s>{$x}": "no operator !", "$map(list, λ($x)< ~{$x})": "no operator ~",
	} {
		if _, err := jsonata.Parse(src); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", src, err, want)
		}
	}
}
