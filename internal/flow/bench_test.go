package flow_test

import (
	"fmt"
	"strings"
	"testing"

	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/pkg/wire"
)

// A flow of a row of agents, the last of which is at work: what the owner asks
// after each of its events.
func BenchmarkDecideNothing(b *testing.B) {
	dr := row(b, 50)
	b.ReportAllocs()
	for b.Loop() {
		if d, err := flow.Decide(dr.d, dr.s, dr.now, nil); err != nil || len(d.Events) > 0 {
			b.Fatal(len(d.Events), err)
		}
	}
}

// One agent has ended and the next is scheduled.
func BenchmarkDecideNext(b *testing.B) {
	dr := row(b, 50)
	dr.do(`n48 completes {"text":"done"}`)
	b.ReportAllocs()
	for b.Loop() {
		if d, err := flow.Decide(dr.d, dr.s, dr.now, nil); err != nil || len(d.Events) != 2 {
			b.Fatal(len(d.Events), err)
		}
	}
}

func row(b *testing.B, n int) *driver {
	b.Helper()
	var src strings.Builder
	src.WriteString("name: row\nnodes:\n")
	for i := range n {
		fmt.Fprintf(&src, "  - {id: n%d, type: agent, input: {prompt: \"{{ input.task }} after {{ $uppercase(input.task) }}\"}}\n", i)
	}
	src.WriteString("edges:\n")
	for i := range n - 1 {
		fmt.Fprintf(&src, "  - {from: n%d, to: n%d}\n", i, i+1)
	}
	d, err := flow.Parse("row.yaml", []byte(src.String()))
	if err != nil {
		b.Fatal(err)
	}
	dr := start(b, d, wire.RunRequest{Input: raw(b, `{"task":"build"}`)})
	dr.check = false
	dr.settle()
	for i := range n - 2 {
		dr.do(fmt.Sprintf(`n%d completes {"text":"some output"}`, i))
		dr.settle()
	}
	return dr
}

// One of a thousand items has ended.
func BenchmarkDecideItem(b *testing.B) {
	d, err := flow.Parse("items.yaml", []byte(`
name: items
nodes:
  - {id: list, type: agent, input: {prompt: list}}
  - {id: each, type: agent, input: {prompt: "{{ item }}"}}
edges:
  - {from: list, to: each, forEach: {in: list, as: item}}
`))
	if err != nil {
		b.Fatal(err)
	}
	dr := start(b, d, wire.RunRequest{})
	dr.check = false
	dr.settle()
	dr.do("list completes [" + strings.Repeat("1,", 999) + "1]")
	dr.settle()
	dr.do("each/7 completes 1")
	b.ReportAllocs()
	for b.Loop() {
		if d, err := flow.Decide(dr.d, dr.s, dr.now, nil); err != nil || len(d.Events) > 0 {
			b.Fatal(len(d.Events), err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := flow.Parse("x.yaml", []byte(whole)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFromRaw(b *testing.B) {
	d, err := flow.Parse("x.yaml", []byte(whole))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := flow.FromRaw(d.Raw()); err != nil {
			b.Fatal(err)
		}
	}
}
