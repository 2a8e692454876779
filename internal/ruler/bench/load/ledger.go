package load

import "fmt"

// Ledger is the outcome of each client's operations at the end of a run. A client sends its
// sequence numbers in order, so all of [0, sent) were acknowledged except those listed.
type Ledger struct {
	clients []clientLedger
}

type clientLedger struct {
	sent    int64
	refused []int64 // answered with an unexpected error: not stored
	unknown []int64 // in flight when the connection or the run ended: stored or not
}

// Sent is the outcome of a client of another generator: it sent the numbers below Count, all of
// which were acknowledged except those listed.
type Sent struct {
	Count   int64
	Unknown []int64 // without an answer that says whether they were executed
}

// NewLedger returns the ledger of clients of another generator.
func NewLedger(clients []Sent) *Ledger {
	l := &Ledger{clients: make([]clientLedger, len(clients))}
	for i, c := range clients {
		l.clients[i] = clientLedger{sent: c.Count, unknown: c.Unknown}
	}
	return l
}

// Sent returns the total number of operations sent.
func (l *Ledger) Sent() int64 {
	var n int64
	for i := range l.clients {
		n += l.clients[i].sent
	}
	return n
}

// Unknown returns how many operations were sent and never answered.
func (l *Ledger) Unknown() int64 {
	var n int64
	for i := range l.clients {
		n += int64(len(l.clients[i].unknown))
	}
	return n
}

// Audit is the result of comparing a table with a ledger.
type Audit struct {
	Rows       int64 // in the table
	Lost       int64 // acknowledged and missing
	Twice      int64 // present more than once
	Unexpected int64 // present, though never sent, refused, or meant to fail
	WrongID    int64 // present, under another id than the acknowledged one
	Undecided  int64 // never answered, and present: allowed
	Examples   []string
}

// Err returns nil if the table holds exactly what was acknowledged, apart from operations that
// were never answered.
func (a *Audit) Err() error {
	if a.Lost == 0 && a.Twice == 0 && a.Unexpected == 0 && a.WrongID == 0 {
		return nil
	}
	return fmt.Errorf("table does not hold what was acknowledged: %d lost, %d twice, %d unexpected, %d under another id (%q)",
		a.Lost, a.Twice, a.Unexpected, a.WrongID, a.Examples)
}

func (a *Audit) example(format string, args ...any) {
	if len(a.Examples) < maxExamples {
		a.Examples = append(a.Examples, fmt.Sprintf(format, args...))
	}
}

// Checker compares the rows of a table with a ledger. It needs one bit of memory per operation.
type Checker struct {
	workload Insert
	ledger   *Ledger
	seen     [][]uint64 // a bit for each operation of each client
	audit    Audit
}

// NewChecker returns a Checker that has not seen a row yet.
func NewChecker(w Insert, l *Ledger) *Checker {
	c := &Checker{workload: w, ledger: l, seen: make([][]uint64, len(l.clients))}
	for i := range l.clients {
		c.seen[i] = make([]uint64, (l.clients[i].sent+63)/64)
	}
	return c
}

// Row adds a row of the table: the client's n-th operation. It returns false if that was never
// sent, so that there is nothing else to compare.
func (c *Checker) Row(client, n int64) bool {
	c.audit.Rows++
	if client < 0 || client >= int64(len(c.seen)) || n < 0 || n >= c.ledger.clients[client].sent || c.workload.Fails(int(client), n) {
		c.audit.Unexpected++
		c.audit.example("client %d, operation %d: present, not sent", client, n)
		return false
	}
	word, bit := &c.seen[client][n/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		c.audit.Twice++
		c.audit.example("client %d, operation %d: present twice", client, n)
	}
	*word |= bit
	return true
}

// WrongID records that a client was told another id for its n-th operation than its row has.
func (c *Checker) WrongID(client, n int64, told, stored uint64) {
	c.audit.WrongID++
	c.audit.example("client %d, operation %d: acknowledged as id %d, present as %d", client, n, told, stored)
}

// Finish looks for missing rows after all rows have been added.
func (c *Checker) Finish() *Audit {
	a := &c.audit
	for client := range c.ledger.clients {
		l := &c.ledger.clients[client]
		has := func(n int64) bool { return c.seen[client][n/64]>>(n%64)&1 != 0 }
		excused := make(map[int64]bool)
		for _, n := range l.unknown {
			excused[n] = true
			if has(n) {
				a.Undecided++
			}
		}
		for _, n := range l.refused {
			excused[n] = true
			if has(n) {
				a.Unexpected++
				a.example("client %d, operation %d: present, though refused", client, n)
			}
		}
		for n := range l.sent {
			if !has(n) && !excused[n] && !c.workload.Fails(client, n) {
				a.Lost++
				a.example("client %d, operation %d: acknowledged, but missing", client, n)
			}
		}
	}
	return a
}
