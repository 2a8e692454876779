package mysql

import (
	"testing"
	"time"
)

// TestMark derives from looks, by hand, when a mark is settled. Sessions are
// small numbers, transactions those from 100 on.
func TestMark(t *testing.T) {
	type step struct {
		after     time.Duration // since the mark
		executing map[int64]string
		writing   map[uint64]int64
		limit     uint64
		want      bool
	}
	for _, c := range []struct {
		name  string
		mark  map[int64]string
		steps []step
	}{
		{"nobody is there", nil, []step{{want: true}}},
		{
			"a writer ends", nil,
			[]step{
				{writing: map[uint64]int64{100: 1}, limit: 101},
				{writing: map[uint64]int64{100: 1, 102: 2}},
				{writing: map[uint64]int64{102: 2, 103: 1}, want: true},
			},
		},
		{
			"a writer that began later does not count", nil,
			[]step{{writing: map[uint64]int64{105: 1}, limit: 101, want: true}},
		},
		{
			"but does where that is not known", nil,
			[]step{{writing: map[uint64]int64{105: 1}}, {want: true}},
		},
		{
			"a statement ends without a trace",
			map[int64]string{1: "7"},
			[]step{{executing: map[int64]string{1: "7"}, limit: 101}, {want: true}},
		},
		{
			"a statement shows its transaction, which is waited for",
			map[int64]string{1: "7"},
			[]step{
				{executing: map[int64]string{1: "7"}, limit: 101},
				{executing: map[int64]string{1: "7"}, writing: map[uint64]int64{103: 1}},
				{writing: map[uint64]int64{103: 1}},
				{writing: map[uint64]int64{104: 1}, want: true},
			},
		},
		{
			"another statement of the session has begun",
			map[int64]string{1: "7"},
			[]step{{executing: map[int64]string{1: "8"}, limit: 101, want: true}},
		},
		{
			"statements without numbers cannot be told apart",
			map[int64]string{1: ""},
			[]step{{executing: map[int64]string{1: ""}, limit: 101}, {after: grace - 1, executing: map[int64]string{1: ""}}, {want: true}},
		},
		{
			"a long SELECT is let go",
			map[int64]string{1: "7"},
			[]step{{executing: map[int64]string{1: "7"}, limit: 101}, {after: grace, executing: map[int64]string{1: "7"}, want: true}},
		},
		{
			"a prepared transaction has left its session",
			map[int64]string{1: "7"},
			[]step{{limit: 101, writing: map[uint64]int64{103: 0}}, {writing: map[uint64]int64{103: 0}}, {want: true}},
		},
		{
			"a prepared transaction from before", nil,
			[]step{{limit: 101, writing: map[uint64]int64{90: 0}}, {after: time.Hour, writing: map[uint64]int64{90: 0}}, {want: true}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := time.Now()
			m := newMark(at, c.mark)
			for i, s := range c.steps {
				if got := m.observe(&observation{at: at.Add(s.after), executing: s.executing, writing: s.writing}, s.limit); got != s.want {
					t.Fatalf("look %d: settled: %v, want %v", i, got, s.want)
				}
			}
		})
	}
}
