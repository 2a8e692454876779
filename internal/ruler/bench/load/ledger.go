package load

import "fmt"

// Ledger is what each client knows of its operations when a run has ended: a
// client sends its numbers in order, so all of [0, sent) were acknowledged but
// those it lists.
type Ledger struct {
	clients []clientLedger
}

type clientLedger struct {
	sent    int64
	refused []int64 // answered with an error that was not expected: not stored
	unknown []int64 // in flight when the connection or the run ended: either way
}

// Sent is what a client of another generator than Run knows: it sent the numbers below
// Count, all of which were acknowledged but those that it lists.
type Sent struct {
	Count   int64
	Unknown []int64 // answered by nothing that says whether they were done
}

// NewLedger is the ledger of clients of another generator than Run.
func NewLedger(clients []Sent) *Ledger {
	l := &Ledger{clients: make([]clientLedger, len(clients))}
	for i, c := range clients {
		l.clients[i] = clientLedger{sent: c.Count, unknown: c.Unknown}
	}
	return l
}

// Sent returns how many operations were sent in all.
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
	Rows      int64 // in the table
	Lost      int64 // acknowledged and not there
	Twice     int64 // there more than once
	Uncalled  int64 // there, though never sent, refused, or meant to fail
	Misnamed  int64 // there, under another id than the one acknowledged
	Undecided int64 // never answered, and there: allowed
	Examples  []string
}

// Err returns nil when the table holds exactly what was acknowledged, give or
// take the operations that were never answered.
func (a *Audit) Err() error {
	if a.Lost == 0 && a.Twice == 0 && a.Uncalled == 0 && a.Misnamed == 0 {
		return nil
	}
	return fmt.Errorf("table does not hold what was acknowledged: %d lost, %d twice, %d uncalled for, %d under another id (%q)",
		a.Lost, a.Twice, a.Uncalled, a.Misnamed, a.Examples)
}

func (a *Audit) example(format string, args ...any) {
	if len(a.Examples) < maxExamples {
		a.Examples = append(a.Examples, fmt.Sprintf(format, args...))
	}
}

// Checker compares the rows of a table with a ledger. It needs one bit of memory
// for each operation.
type Checker struct {
	workload Insert
	ledger   *Ledger
	seen     [][]uint64 // a bit for each operation of each client
	audit    Audit
}

// NewChecker returns a Checker that has seen no row yet.
func NewChecker(w Insert, l *Ledger) *Checker {
	c := &Checker{workload: w, ledger: l, seen: make([][]uint64, len(l.clients))}
	for i := range l.clients {
		c.seen[i] = make([]uint64, (l.clients[i].sent+63)/64)
	}
	return c
}

// Row enters a row of the table: the client's n-th operation. It reports whether
// that was sent, so that what else is known of it can be compared.
func (c *Checker) Row(client, n int64) bool {
	c.audit.Rows++
	if client < 0 || client >= int64(len(c.seen)) || n < 0 || n >= c.ledger.clients[client].sent || c.workload.Fails(int(client), n) {
		c.audit.Uncalled++
		c.audit.example("client %d, operation %d: there, not sent", client, n)
		return false
	}
	word, bit := &c.seen[client][n/64], uint64(1)<<(n%64)
	if *word&bit != 0 {
		c.audit.Twice++
		c.audit.example("client %d, operation %d: there twice", client, n)
	}
	*word |= bit
	return true
}

// Misnamed enters that a client was told another id for its n-th operation than
// the row has.
func (c *Checker) Misnamed(client, n int64, told, stored uint64) {
	c.audit.Misnamed++
	c.audit.example("client %d, operation %d: acknowledged as id %d, there as %d", client, n, told, stored)
}

// Finish looks for what is missing when all rows have been entered.
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
				a.Uncalled++
				a.example("client %d, operation %d: there, though refused", client, n)
			}
		}
		for n := range l.sent {
			if !has(n) && !excused[n] && !c.workload.Fails(client, n) {
				a.Lost++
				a.example("client %d, operation %d: acknowledged, not there", client, n)
			}
		}
	}
	return a
}
