package compare

import "slices"

// Row is what both runs did at one place; nil: the run did nothing there.
type Row struct {
	A, B *Step
	Same bool // they did the same, and the same came of it
}

// Node is where it happened.
func (r Row) Node() string {
	if r.A != nil {
		return r.A.Node
	}
	return r.B.Node
}

// Align puts the steps of two runs side by side, each in its order. What both asked for stands in one
// row, though something else came of it; between such rows stand steps of the same node and kind.
func Align(a, b []Step) []Row {
	var rows []Row
	i, j := 0, 0
	for _, p := range append(pairSteps(a, b), pair{len(a), len(b)}) {
		rows = fillGap(rows, a[i:p.a], b[j:p.b])
		if p.a < len(a) {
			rows = append(rows, Row{&a[p.a], &b[p.b], a[p.a].key == b[p.b].key})
		}
		i, j = p.a+1, p.b+1
	}
	return rows
}

// pair is a step of each run, by its place.
type pair struct{ a, b int }

// pairSteps pairs the n-th time that one run asked for something with the n-th time that the other
// did, as far as both did so in the same order.
func pairSteps(a, b []Step) []pair {
	places := map[string][]int{}
	for i := range b {
		key := b[i].Node + "\x00" + b[i].call
		places[key] = append(places[key], i)
	}
	var all []pair
	for i := range a {
		key := a[i].Node + "\x00" + a[i].call
		if at := places[key]; len(at) > 0 {
			all, places[key] = append(all, pair{i, at[0]}), at[1:]
		}
	}
	return longestRising(all)
}

// longestRising is the longest part of pairs, which are sorted by a, that is sorted by b, too.
func longestRising(pairs []pair) []pair {
	var last []int // of the rising parts of each length the pair that ends the lowest
	before := make([]int, len(pairs))
	for i, p := range pairs {
		n, _ := slices.BinarySearchFunc(last, p.b, func(k, b int) int { return pairs[k].b - b })
		before[i] = -1
		if n > 0 {
			before[i] = last[n-1]
		}
		if n == len(last) {
			last = append(last, i)
		} else {
			last[n] = i
		}
	}
	var rising []pair
	if len(last) > 0 {
		for i := last[len(last)-1]; i >= 0; i = before[i] {
			rising = append(rising, pairs[i])
		}
	}
	slices.Reverse(rising)
	return rising
}

// fillGap adds the steps between two pairs: side by side where the same node did something of the same
// kind, else one after the other.
func fillGap(rows []Row, a, b []Step) []Row {
	type kind struct{ node, what string }
	places := map[kind][]int{} // in b
	for k := range b {
		of := kind{b[k].Node, b[k].What}
		places[of] = append(places[of], k)
	}
	at := 0 // how many of b have a row
	for i := range a {
		of := kind{a[i].Node, a[i].What}
		for len(places[of]) > 0 && places[of][0] < at {
			places[of] = places[of][1:]
		}
		if len(places[of]) == 0 {
			rows = append(rows, Row{A: &a[i]})
			continue
		}
		n := places[of][0]
		for k := at; k < n; k++ {
			rows = append(rows, Row{B: &b[k]})
		}
		rows = append(rows, Row{A: &a[i], B: &b[n]})
		at = n + 1
	}
	for k := range b[at:] {
		rows = append(rows, Row{B: &b[at+k]})
	}
	return rows
}

// deedsOf are the steps that aren't words.
func deedsOf(steps []Step) []Step {
	return slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return s.What == Said })
}
