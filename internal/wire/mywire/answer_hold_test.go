package mywire

import (
	"bytes"
	"testing"
)

// Whatever the cut, what is held back and what is passed on add up, and nothing
// of the packet that ends the answer has been passed on before it is whole.
func TestAnswerHoldsBackWhatEndsIt(t *testing.T) {
	for _, caps := range walkedCaps {
		for name, s := range scripted(caps) {
			if !HasAnswer(s.command) || s.command == ComStatistics || s.command == ComStmtPrepare || s.command == ComChangeUser || name == "infile" {
				continue // these end with no OK, or wait for the client in between
			}
			lastAt := 0
			for at := 0; at < len(s.stream); {
				n, _ := Message(s.stream[at:])
				lastAt, at = at, at+n
			}
			for cut := 1; cut < len(s.stream); cut++ {
				var a Answer
				a.Reset(s.command, caps)
				held, at := 0, 0
				for event := EventMore; event != EventDone; {
					end := len(s.stream)
					if at < cut {
						end = cut
					}
					n, e, err := a.Feed(s.stream[at:end])
					if err != nil {
						t.Fatalf("%s, cut at %d: %v", name, cut, err)
					}
					at += n
					if event = e; event == EventMore {
						if held = a.Held(); at-held > lastAt && at > lastAt {
							t.Fatalf("%s, cut at %d: %d of %d bytes passed on, the end begins at %d", name, cut, at-held, at, lastAt)
						}
					}
				}
				if a.Tail() != len(s.stream)-lastAt || !a.Between() || a.InRows() {
					t.Fatalf("%s, cut at %d: tail of %d bytes, want %d", name, cut, a.Tail(), len(s.stream)-lastAt)
				}
			}
		}
	}
}

func TestClearStatus(t *testing.T) {
	state := AppendChange(nil, Change{Kind: TrackSchema, Value: []byte("db")})
	given := OK{AffectedRows: 1 << 20, LastInsertID: 7, Status: StatusInTrans | StatusAutocommit, Info: []byte("info"), State: state}
	want := given
	want.Status = StatusAutocommit
	for _, caps := range walkedCaps {
		for _, appended := range []func([]byte, byte, Caps, *OK) []byte{AppendOK, AppendEnd} {
			payload := appended(nil, 1, caps, &given)[HeaderLen:]
			ClearStatus(payload, caps, StatusInTrans)
			if !bytes.Equal(payload, appended(nil, 1, caps, &want)[HeaderLen:]) {
				t.Errorf("caps %#x: %x", caps, payload)
			}
		}
	}
	e := AppendError(nil, 1, NewError(ErrDeadlock, "x"))[HeaderLen:]
	before := bytes.Clone(e)
	if ClearStatus(e, CapDeprecateEOF, StatusInTrans); !bytes.Equal(e, before) {
		t.Errorf("%x", e)
	}
}

// Between reports whether the walk is between two packets.
func (a *Answer) Between() bool { return a.skip == 0 && a.have == 0 && !a.continued }
