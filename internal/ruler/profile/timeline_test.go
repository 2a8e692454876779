package profile

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// play runs events against a timeline. Each word is EVENT@TIME, and reads may end
// with the time of arrival: read@TIME/ARRIVED.
func play(t *testing.T, script string) (split, int64, int64) {
	t.Helper()
	tl := newTimeline()
	var s split
	var trips, overtaken int64
	for word := range strings.FieldsSeq(script) {
		name, rest, _ := strings.Cut(word, "@")
		at, arrived, _ := strings.Cut(rest, "/")
		now := int64(number(t, at))
		switch name {
		case "start":
			tl.start(now)
		case "connect":
			tl.connectBegins(now)
		case "connected":
			tl.connectEnds(now)
		case "check":
			tl.checkBegins(now)
		case "checked":
			tl.checkEnds(now)
		case "probe":
			tl.probeBegins(now)
		case "probed":
			tl.probeEnds(now)
		case "call":
			tl.callBegins(now)
		case "write":
			tl.writeBegins(now)
		case "written":
			tl.writeEnds(now)
		case "await":
			tl.readBegins(now)
		case "read":
			tl.readEnds(int64(number(t, arrived)), now)
		case "done":
			tl.done(now)
		case "end":
			s, trips, overtaken = tl.end(now)
		default:
			t.Fatalf("no event %q", name)
		}
	}
	return s, trips, overtaken
}

func number(t *testing.T, s string) int {
	t.Helper()
	n := 0
	for _, r := range s {
		if r < '0' || r > '9' {
			t.Fatalf("%q is not a number", s)
		}
		n = 10*n + int(r-'0')
	}
	return n
}

func TestTimelineSegments(t *testing.T) {
	tests := []struct {
		name, script     string
		want             map[segment]int64
		trips, overtaken int64
	}{
		{
			"one round trip over a warm connection",
			"start@100 call@110 write@113 written@120 read@160/150 done@166 end@168",
			map[segment]int64{segQueue: 10, segEncode: 3, segSend: 7, segServer: 30, segWake: 10, segDecode: 6, segRelease: 2},
			1, 0,
		},
		{
			"a connection is opened after a wait",
			"start@0 connect@5 connected@95 call@97 write@98 written@99 read@110/105 done@111 end@111",
			map[segment]int64{segQueue: 7, segConnect: 90, segEncode: 1, segSend: 1, segServer: 6, segWake: 5, segDecode: 1},
			1, 0,
		},
		{
			"a connection is checked by the pool, and by the driver",
			"start@0 check@2 checked@12 call@13 probe@14 probed@18 write@20 written@21 read@30/28 done@31 end@32",
			map[segment]int64{segQueue: 3, segCheck: 14, segEncode: 3, segSend: 1, segServer: 7, segWake: 2, segDecode: 1, segRelease: 1},
			1, 0,
		},
		{
			"the answer is there before the write returns",
			"start@0 call@1 write@2 written@20 read@25/15 done@26 end@27",
			map[segment]int64{segQueue: 1, segEncode: 1, segSend: 18, segWake: 5, segDecode: 1, segRelease: 1},
			1, 1,
		},
		{
			"a driver reads the answer in the background while its write goes on",
			"start@0 call@1 write@2 read@15/10 written@20 done@26 end@27",
			map[segment]int64{segQueue: 1, segEncode: 1, segSend: 18, segDecode: 6, segRelease: 1},
			1, 1,
		},
		{
			"and its head alone, in the first of two round trips",
			"start@0 call@1 write@2 read@15/10 written@20 await@22 read@40/30 call@42 write@43 written@44 read@50/50 done@51 end@52",
			map[segment]int64{segQueue: 1, segEncode: 2, segSend: 19, segServer: 6, segWake: 10, segReceive: 8, segDecode: 5, segRelease: 1},
			2, 1,
		},
		{
			"nobody knows when the answer arrived",
			"start@0 call@1 write@2 written@3 read@25/0 done@26 end@27",
			map[segment]int64{segQueue: 1, segEncode: 1, segSend: 1, segServer: 22, segDecode: 1, segRelease: 1},
			1, 0,
		},
		{
			"the rest of a large answer is waited for",
			"start@0 call@1 write@2 written@3 read@13/10 await@15 read@40/30 await@41 read@42/35 done@43 end@44",
			map[segment]int64{segQueue: 1, segEncode: 1, segSend: 1, segServer: 7, segWake: 13, segReceive: 16, segDecode: 4, segRelease: 1},
			1, 0,
		},
		{
			"two statements",
			"start@0 call@1 write@2 written@3 read@13/10 call@15 write@17 written@18 read@30/28 done@31 end@33",
			map[segment]int64{segQueue: 1, segEncode: 3, segSend: 2, segServer: 17, segWake: 5, segDecode: 3, segRelease: 2},
			2, 0,
		},
		{
			"a driver writes twice before it reads",
			"start@0 call@1 write@2 written@3 write@4 written@6 read@16/14 done@17 end@18",
			map[segment]int64{segQueue: 1, segEncode: 1, segSend: 3, segServer: 9, segWake: 2, segDecode: 1, segRelease: 1},
			1, 0,
		},
		{
			"no connection came",
			"start@0 connect@5 end@50",
			map[segment]int64{segQueue: 5, segConnect: 45},
			0, 0,
		},
		{
			"events of a connection that outlived its operation",
			"start@0 call@1 done@2 end@3 write@4 written@5 read@9/7 connected@10",
			map[segment]int64{segQueue: 1, segEncode: 1, segRelease: 1},
			0, 0,
		},
		{
			"a clock that steps back",
			"start@10 call@8 write@12 written@11 read@20/30 done@19 end@21",
			map[segment]int64{segEncode: 2, segServer: 8, segRelease: 1},
			1, 0,
		},
	}
	for _, tt := range tests {
		s, trips, overtaken := play(t, tt.script)
		var want split
		for g, d := range tt.want {
			want[g] = d
		}
		if s != want {
			t.Errorf("%s:\n got %v\nwant %v", tt.name, s, want)
		}
		if trips != tt.trips || overtaken != tt.overtaken {
			t.Errorf("%s: %d round trips, %d overtaken; want %d and %d", tt.name, trips, overtaken, tt.trips, tt.overtaken)
		}
	}
}

// Whatever a driver does, in whatever order: the segments add up, and none is
// negative.
func TestSegmentsAddUpWhateverHappens(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		tl := newTimeline()
		now := int64(1000)
		tl.start(now)
		latest := now
		for range rng.IntN(20) {
			now += rng.Int64N(30) - 3
			latest = max(latest, now)
			events := []func(int64){
				tl.connectBegins, tl.connectEnds, tl.checkBegins, tl.checkEnds, tl.callBegins, tl.probeBegins, tl.probeEnds,
				tl.writeBegins, tl.writeEnds, tl.readBegins, tl.done,
				func(now int64) { tl.readEnds(0, now) },
				func(now int64) { tl.readEnds(max(now+rng.Int64N(40)-30, 1), now) },
			}
			events[rng.IntN(len(events))](now)
		}
		end := max(now, latest) + 1
		s, _, _ := tl.end(end)
		if s.total() != end-1000 {
			t.Fatalf("segments add up to %d, the operation took %d: %v", s.total(), end-1000, s)
		}
		for g, d := range s {
			if d < 0 {
				t.Fatalf("segment %s is %d long", segmentNames[g], d)
			}
		}
	}
}
