package queries

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What agents choose has no say in how long a timeline takes: they may call as many tools as they make calls.
func TestManyNames(t *testing.T) {
	var n nameTable
	begun := time.Now()
	for range 2 {
		for i := range 300_000 {
			if at := n.numberOf(fmt.Appendf(nil, "tool-%06d", i)); at != int32(i) {
				t.Fatalf("name %d has the number %d", i, at)
			}
		}
	}
	if took := time.Since(begun); took > 20*time.Second || len(n.all) != 300_000 { // minutes, if each is compared with all
		t.Errorf("%d names in %v", len(n.all), took)
	}
}

// All that courses have is bounded, not their lines alone; the one that was asked for last is held.
func TestCoursesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<10)
	for name, fill := range map[string]func(*course){
		"lines": func(k *course) { k.lines = make([]courseLine, maxCourseSize) },
		"calls": func(k *course) { k.calls = make([]courseCall, maxCourseSize/2) },
		"waits": func(k *course) { k.waits = make([]courseWait, maxCourseSize/2) },
		"texts": func(k *course) {
			for range 50_000 {
				k.waits = append(k.waits, courseWait{text: long})
			}
		},
		"lanes": func(k *course) {
			for i := range maxCourseSize / 5 {
				k.laneOf(int64(i), nil, 0)
			}
		},
		"tools": func(k *course) {
			for i := range 50_000 {
				k.tools.numberOf(fmt.Append(nil, i, long))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var held courses
			small := held.lock("small")
			small.lines = make([]courseLine, 10)
			held.unlock(small)
			if len(held.byRun) != 1 {
				t.Fatal("a small course isn't held")
			}
			large := held.lock("large")
			fill(large)
			held.unlock(large)
			if len(held.byRun) != 1 || held.byRun["large"] != large {
				t.Errorf("%d courses are held, with %d lines", len(held.byRun), large.sizeNow())
			}
		})
	}
}
