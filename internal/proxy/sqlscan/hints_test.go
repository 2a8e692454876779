package sqlscan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func window(d time.Duration) BatchHint { return BatchHint{Kind: BatchWindow, Window: d} }

func TestHints(t *testing.T) {
	auto, off := BatchHint{Kind: BatchAuto}, BatchHint{Kind: BatchOff}
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		sql  string
		want Hints
	}{
		{"select 1", Hints{}},
		{"/* batch:10 */ select 1", Hints{Batch: window(10 * time.Millisecond)}},
		{"/*batch:10*/select 1", Hints{Batch: window(10 * time.Millisecond)}},
		{"-- batch:10\nselect 1", Hints{Batch: window(10 * time.Millisecond)}},
		{"-- batch:10\r\nselect 1", Hints{Batch: window(10 * time.Millisecond)}},
		{"/* batch */ select 1", Hints{Batch: auto}},
		{"/* batch:auto */ select 1", Hints{Batch: auto}},
		{"/* batch:off */ select 1", Hints{Batch: off}},
		{"/* batch:0 */ select 1", Hints{Batch: off}},
		{"/* batch:2.5 */ select 1", Hints{Batch: window(2500 * time.Microsecond)}},
		{"/* batch:1000 */ select 1", Hints{Batch: window(time.Second)}},
		// Any order: the reference proxy's defect B8.
		{"/* batch:10 file:x line:3 */ select 1", Hints{Batch: window(10 * time.Millisecond), File: "x", Line: 3}},
		{"/* line:3, file:a/b.go:7 ,ttl:60 batch */ select 1", Hints{Batch: auto, File: "a/b.go:7", Line: 3, TTL: time.Minute}},
		{"/* ttl:60 tag:prices */ select 1", Hints{TTL: time.Minute, Tag: "prices"}},
		{"select 1 /*ttl='0',tag='a b'*/", Hints{Tag: "a b", NoCache: true}},
		{"/* ttl:0 ttl:5 */ select 1", Hints{NoCache: true}},
		{"/* ttl:5 ttl:0 */ select 1", Hints{TTL: 5 * time.Second}},
		{"/* ttl:0 */ select 1 /*ttl='5'*/", Hints{NoCache: true}},
		{"/* ttl:x ttl:5 */ select 1", Hints{TTL: 5 * time.Second, Bad: []string{"ttl:x is not a number of seconds from 0 to 31536000"}}},
		{"/* tag: ttl:1 */ select 1", Hints{TTL: time.Second, Bad: []string{"tag: is not a name of 1 to 64 bytes"}}},
		{"/* prose */ -- more prose\n /* ttl:0.5 */ -- batch\nselect 1", Hints{Batch: auto, TTL: time.Second / 2}},
		{"/* batch:1 */ /* batch:2 */ select 1", Hints{Batch: window(time.Millisecond)}},
		{" ; /* batch:1 */ select 1", Hints{}}, // not in front of the first token

		// Prose is no hint.
		{"/* batch job nightly */ select 1", Hints{}},
		{"/* the file:x is big */ select 1", Hints{}},
		{"/* batches:3 */ select 1", Hints{}},
		{"/* Batch:3 */ select 1", Hints{}},
		{"/*+ SeqScan(t) */ select 1", Hints{}},
		{"/**/ select 1", Hints{}},
		{"/* batch /* nested */ */ select 1", Hints{}},

		// Only leading comments count, and never text in literals (B7).
		{"select /* batch:10 */ 1 /* batch:5 */", Hints{}},
		{"select '/* batch:10 */'", Hints{}},
		{"insert into t values ('see /* ttl:5 */ here')", Hints{}},
		{"select $$/* batch */$$ -- batch:9", Hints{}},

		// Unusable hints are reported.
		{"/* batch:1001 */ select 1", Hints{Bad: []string{"batch:1001 is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:-1 */ select 1", Hints{Bad: []string{"batch:-1 is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:10ms */ select 1", Hints{Bad: []string{"batch:10ms is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch: */ select 1", Hints{Bad: []string{"batch: is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:NaN */ select 1", Hints{Bad: []string{"batch:NaN is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:1e2 */ select 1", Hints{Bad: []string{"batch:1e2 is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:. */ select 1", Hints{Bad: []string{"batch:. is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:x batch:5 */ select 1", Hints{Batch: window(5 * time.Millisecond), Bad: []string{"batch:x is not auto, off or a number of milliseconds from 0 to 1000"}}},
		{"/* batch:10 nightly */ select 1", Hints{Batch: window(10 * time.Millisecond), Bad: []string{"nightly is no hint: known are batch, batch:, file:, line:, tag:, traceparent: and ttl:"}}},
		{"/* line:x file: ttl:soon */ select 1", Hints{Bad: []string{
			"line:x is not a line number", "file: has no value", "ttl:soon is not a number of seconds from 0 to 31536000",
		}}},

		// SQLCommenter, in front and at the end.
		{"/*batch='auto',file='a%2Fb.go',line='7'*/ select 1", Hints{Batch: auto, File: "a/b.go", Line: 7}},
		{"select 1 /*application='x',traceparent='" + trace + "'*/", Hints{Trace: trace}},
		{"/* traceparent:" + trace + " */ select 1", Hints{Trace: trace}},
		{"/*traceparent='" + trace + "'*/ select 1", Hints{Trace: trace}},
		{"/* batch traceparent:" + trace + " */ select 1", Hints{Trace: trace, Batch: BatchHint{Kind: BatchAuto}}},
		{"select 1 /* batch='5' , ttl='2' */;", Hints{}},
		{"select 1; /* batch='5' , ttl='2' */", Hints{Batch: window(5 * time.Millisecond), TTL: 2 * time.Second}},
		{`select 1 /*file='it\'s'*/`, Hints{File: "it's"}},
		{"select 1 -- file='x'", Hints{}},
		{"select 1 /*file='x*/", Hints{}},
		{"/*file='%zz'*/ select 1", Hints{Bad: []string{"file='%zz' is not URL-encoded"}}},
	} {
		if diff := cmp.Diff(c.want, Scan(c.sql).Hints); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.sql, diff)
		}
	}
}

func TestBadHintsAreBounded(t *testing.T) {
	h := Scan("/* batch:x " + strings.Repeat("noise ", 1000) + strings.Repeat("y", 1000) + " */ select 1").Hints
	if len(h.Bad) == 0 || len(h.Bad) > 8 {
		t.Fatalf("%d messages", len(h.Bad))
	}
	for _, m := range h.Bad {
		if len(m) > 200 {
			t.Errorf("message of %d bytes", len(m))
		}
	}
}

// The reference of hints is of those that are read.
func TestHintKeys(t *testing.T) {
	for _, k := range HintKeys() {
		for _, v := range k.Values {
			for _, text := range []string{"/* " + v.Example + " */ SELECT 1", "-- " + v.Example + "\nSELECT 1"} {
				h := Scan(text).Hints
				without := len(h.Bad) > 0 && strings.Contains(h.Bad[0], "no effect yet")
				if len(h.Bad) > 0 && !without || without != (k.Effect == "") {
					t.Errorf("%s: reported %q, effect %q", text, h.Bad, k.Effect)
				}
			}
		}
		if key, _, ok := cutHint(k.Key + ":x"); !ok || key != k.Key {
			t.Errorf("%s is no hint", k.Key)
		}
	}
}
