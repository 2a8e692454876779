package load

import "testing"

// at is a row of the table: a client and its operation.
type at struct{ client, n int64 }

func TestCheckerFindsEveryKindOfDamage(t *testing.T) {
	ledger := func() *Ledger {
		return &Ledger{clients: []clientLedger{{sent: 5}, {sent: 4, refused: []int64{1}, unknown: []int64{3}}}}
	}
	good := []at{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 0}, {1, 2}}
	and := func(more ...at) []at { return append(append([]at(nil), good...), more...) }
	for name, tc := range map[string]struct {
		rows                           []at
		lost, twice, called, undecided int64
	}{
		"exact":          {rows: good},
		"unknown stored": {rows: and(at{1, 3}), undecided: 1},
		"lost":           {rows: good[1:], lost: 1},
		"twice":          {rows: and(at{0, 0}), twice: 1},
		"not sent":       {rows: and(at{0, 5}), called: 1},
		"other client":   {rows: and(at{2, 0}), called: 1},
		"negative":       {rows: and(at{0, -1}), called: 1},
		"negative owner": {rows: and(at{-1, 0}), called: 1},
		"refused stored": {rows: and(at{1, 1}), called: 1},
		"empty":          {lost: 7},
	} {
		c := NewChecker(Insert{}, ledger())
		for _, r := range tc.rows {
			c.Row(r.client, r.n)
		}
		a := c.Finish()
		if a.Rows != int64(len(tc.rows)) || a.Lost != tc.lost || a.Twice != tc.twice || a.Unexpected != tc.called || a.Undecided != tc.undecided {
			t.Errorf("%s: %+v", name, *a)
		}
		if bad := tc.lost+tc.twice+tc.called > 0; (a.Err() != nil) != bad {
			t.Errorf("%s: Err() = %v", name, a.Err())
		}
	}
}

func TestCheckerTellsWhichRowsWereSent(t *testing.T) {
	c := NewChecker(Insert{}, &Ledger{clients: []clientLedger{{sent: 2}}})
	if !c.Row(0, 1) || !c.Row(0, 0) || c.Row(0, 2) {
		t.Error("Row does not tell what was sent from what was not")
	}
	if err := c.Finish().Err(); err == nil {
		t.Error("a row that was not sent is fine")
	}
	c = NewChecker(Insert{}, &Ledger{clients: []clientLedger{{sent: 1}}})
	c.Row(0, 0)
	c.WrongID(0, 0, 7, 8)
	if a := c.Finish(); a.WrongID != 1 || a.Err() == nil {
		t.Errorf("a row under another id: %+v, %v", *a, a.Err())
	}
}

func TestCheckerWantsNoRowOfAnOperationMeantToFail(t *testing.T) {
	w := Insert{FailPercent: 50}
	l := &Ledger{clients: []clientLedger{{sent: 100}}}
	c := NewChecker(w, l)
	var one int64
	for n := range int64(100) {
		if w.Fails(0, n) {
			one = n
		} else {
			c.Row(0, n)
		}
	}
	if a := c.Finish(); a.Err() != nil || a.Rows == 100 {
		t.Errorf("half of it fails as it should: %+v", *a)
	}
	c.Row(0, one)
	if a := c.Finish(); a.Unexpected != 1 {
		t.Errorf("a failing operation stored: %+v", *a)
	}
}
