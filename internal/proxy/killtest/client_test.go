package killtest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/lab/labtest"
)

// A ground is the tables of one period and what is known of them.
type ground struct {
	engine *engine
	ledger *ledger
	number int // of the period
	errs   *census
	done   *pulse // acknowledged writes of all periods
}

func (g *ground) doubles() string { return fmt.Sprintf("kt_doubles_%d", g.number) }
func (g *ground) keyed() string   { return fmt.Sprintf("kt_keyed_%d", g.number) }
func (g *ground) slots() string   { return fmt.Sprintf("kt_slots_%d", g.number) }

// common is how many slots all clients append to, with negative numbers.
const common = 4

// make makes the tables. That of doubles has no key that would hide one.
func (g *ground) make(ctx context.Context, s session) error {
	texts := []string{
		"CREATE TABLE " + g.doubles() + " (id bigint NOT NULL, part int NOT NULL, body varchar(200) NOT NULL)",
		"CREATE INDEX " + g.doubles() + "_id ON " + g.doubles() + " (id)",
		"CREATE TABLE " + g.keyed() + " (id bigint PRIMARY KEY, part int NOT NULL, body varchar(200) NOT NULL)",
		"CREATE TABLE " + g.slots() + " (id bigint PRIMARY KEY, body varchar(200) NOT NULL, entries " + g.engine.text + " NOT NULL)",
	}
	for i := range common {
		texts = append(texts, fmt.Sprintf("INSERT INTO %s VALUES (%d, '', '')", g.slots(), -1-i))
	}
	for _, text := range texts {
		if _, err := s.exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

// read returns all that the tables hold.
func (g *ground) read(ctx context.Context, s session) (found []record, bad []string, err error) {
	for _, table := range []string{g.doubles(), g.keyed()} {
		err := s.rows(ctx, func(scan func(...any) error) error {
			var r record
			defer func() { found = append(found, r) }()
			return scan(&r.id, &r.part, &r.body)
		}, "SELECT id, part, body FROM "+table)
		if err != nil {
			return nil, nil, err
		}
	}
	err = s.rows(ctx, func(scan func(...any) error) error {
		r, list := record{part: partSlot}, ""
		if err := scan(&r.id, &r.body, &list); err != nil {
			return err
		}
		if r.id > 0 {
			found = append(found, r)
		}
		of, wrong := entries(r.id, list)
		found, bad = append(found, of...), append(bad, wrong...)
		return nil
	}, "SELECT id, body, entries FROM "+g.slots())
	return found, bad, err
}

// entries takes a slot's list apart. What one client alone has appended is in its
// order: it leaves a slot behind when the outcome of a write is unknown.
func entries(slot int64, list string) (found []record, bad []string) {
	last := int64(0)
	for text := range strings.SplitSeq(strings.TrimSuffix(list, ","), ",") {
		if text == "" {
			continue
		}
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			bad = append(bad, fmt.Sprintf("slot %d has an entry %q", slot, text))
			continue
		}
		if slot > 0 && id <= last {
			bad = append(bad, fmt.Sprintf("slot %d has entry %d behind %d", slot, id, last))
		}
		last = id
		found = append(found, record{id, partEntry, content(id, partEntry)})
	}
	return found, bad
}

// A client writes through weir, one write at a time, and tells the ledger what it
// was told.
type client struct {
	*ground
	address string
	random  *rand.Rand
	session session

	slot int64 // an acknowledged one of its own, or 0
	key  int64 // an acknowledged row with a key, or 0
}

// run writes until stop is closed. What is begun is brought to its end.
func (c *client) run(stop <-chan struct{}) {
	defer c.hangUp()
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(c.random.IntN(2000)) * time.Microsecond):
		}
		if c.session == nil && !c.dial() {
			continue
		}
		c.step()
		if c.session != nil && (!c.session.alive() || c.random.IntN(300) == 0) {
			c.hangUp()
		}
	}
}

func (c *client) dial() bool {
	ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
	defer cancel()
	s, err := c.engine.dial(ctx, c.address, c.random.IntN(2) == 0)
	if err != nil {
		c.hung(ctx, "connect")
		time.Sleep(10 * time.Millisecond) // dialing without a pause would be all that a busy machine does
		return false
	}
	c.session = s
	return true
}

func (c *client) hangUp() {
	if c.session != nil {
		c.session.close()
		c.session = nil
	}
}

// hung complains when it was the client's patience that ended.
func (c *client) hung(ctx context.Context, what string) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.ledger.complain("no answer within %v: %s", labtest.Patience, what)
	}
}

// exec runs one statement, most of them with a hint.
func (c *client) exec(text string, args ...any) (int64, error) {
	if c.random.IntN(6) > 0 && text != "BEGIN" && text != "COMMIT" {
		text = "/* batch */ " + text
	}
	ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
	defer cancel()
	n, err := c.session.exec(ctx, text, args...)
	if err != nil {
		c.hung(ctx, text)
		c.errs.count(err)
	}
	return n, err
}

// step is one write, or a few reads.
func (c *client) step() {
	switch d := c.random.IntN(100); {
	case d < 34:
		c.insert(c.doubles(), partRow)
	case d < 44:
		if id, o := c.insert(c.keyed(), partKeyed); o == acked {
			c.key = id
		}
	case d < 50:
		c.mistake()
	case d < 62:
		c.pair()
	case d < 76:
		c.appended(c.slot)
	case d < 81:
		c.appended(-1 - c.random.Int64N(common))
	default:
		c.transaction()
	}
}

// settle tells the ledger, and reads some of what was acknowledged, if it is a row
// with its own id.
func (c *client) settle(id int64, table string, err error) outcome {
	o := judge(err)
	c.ledger.end(id, o)
	if o == acked {
		c.done.beat()
		if table != "" && c.random.IntN(8) == 0 {
			c.look(table, id)
		}
	}
	return o
}

// look reads an own write.
func (c *client) look(table string, id int64) {
	ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
	defer cancel()
	n := 0
	err := c.session.rows(ctx, func(scan func(...any) error) error { return scan(&n) }, "SELECT count(*) FROM "+table+" WHERE id = ?", id)
	if err != nil {
		c.hung(ctx, "read "+table)
		return
	}
	if n == 0 {
		c.ledger.complain("write %d was acknowledged and its client cannot read it in %s", id, table)
	}
}

func (c *client) insert(table string, part byte) (int64, outcome) {
	id := c.ledger.begin(part)
	_, err := c.exec("INSERT INTO "+table+" (id, part, body) VALUES (?, ?, ?)", id, int64(part), content(id, int64(part)))
	return id, c.settle(id, table, err)
}

// mistake is a write that must fail, maybe among others that must not.
func (c *client) mistake() {
	if c.key != 0 && c.random.IntN(2) == 0 {
		_, err := c.exec("INSERT INTO "+c.keyed()+" (id, part, body) VALUES (?, ?, ?)", c.key, int64(partKeyed), "again")
		if err == nil {
			c.ledger.complain("a second row with key %d was acknowledged", c.key)
		}
		return
	}
	id := c.ledger.begin(partRow)
	_, err := c.exec("INSERT INTO "+c.doubles()+" (id, part, body) VALUES (?, ?, ?)", id, int64(partRow), nil)
	if err == nil {
		c.ledger.complain("write %d, which the table refuses, was acknowledged", id)
	}
	c.ledger.end(id, refused)
}

// pair is two rows in one statement.
func (c *client) pair() {
	id := c.ledger.begin(partRow | partTwin)
	_, err := c.exec("INSERT INTO "+c.doubles()+" (id, part, body) VALUES (?, ?, ?), (?, ?, ?)",
		id, int64(partRow), content(id, partRow), id, int64(partTwin), content(id, partTwin))
	c.settle(id, c.doubles(), err)
}

// appended adds an entry to a slot, or makes one of the client's own.
func (c *client) appended(slot int64) {
	if slot == 0 {
		id := c.ledger.begin(partSlot)
		_, err := c.exec("INSERT INTO "+c.slots()+" (id, body, entries) VALUES (?, ?, '')", id, content(id, partSlot))
		if c.settle(id, c.slots(), err) == acked {
			c.slot = id
		}
		return
	}
	id := c.ledger.begin(partEntry)
	n, err := c.enter(slot, id)
	if err == nil && n != 1 {
		c.ledger.complain("an UPDATE of slot %d changed %d rows", slot, n)
	}
	// The write may still happen, behind later ones; and lists shall not get long.
	if o := c.settle(id, "", err); slot > 0 && (o == unknown || c.random.IntN(60) == 0) {
		c.slot = 0
	}
}

func (c *client) enter(slot, id int64) (int64, error) {
	return c.exec("UPDATE "+c.slots()+" SET entries = "+c.engine.concat+" WHERE id = ?", strconv.FormatInt(id, 10)+",", slot)
}

// transaction is an explicit one. Only one whose COMMIT was sent may be there.
func (c *client) transaction() {
	parts := byte(partRow | partKeyed)
	slot := c.slot
	if slot != 0 {
		parts |= partEntry
	}
	id := c.ledger.begin(parts)
	steps := []func() error{
		func() error { _, err := c.exec("BEGIN"); return err },
		func() error {
			_, err := c.exec("INSERT INTO "+c.doubles()+" (id, part, body) VALUES (?, ?, ?)", id, int64(partRow), content(id, partRow))
			return err
		},
		func() error {
			_, err := c.exec("INSERT INTO "+c.keyed()+" (id, part, body) VALUES (?, ?, ?)", id, int64(partKeyed), content(id, partKeyed))
			return err
		},
	}
	if slot != 0 {
		steps = append(steps, func() error {
			n, err := c.enter(slot, id)
			if err == nil && n != 1 {
				c.ledger.complain("an UPDATE of slot %d in a transaction changed %d rows", slot, n)
			}
			return err
		})
	}
	for _, step := range steps {
		if err := step(); err != nil {
			c.ledger.end(id, refused)
			c.rollBack()
			return
		}
	}
	switch c.random.IntN(12) {
	case 0:
		c.ledger.end(id, refused)
		c.rollBack()
		return
	case 1:
		c.ledger.end(id, refused)
		c.hangUp()
		return
	}
	_, err := c.exec("COMMIT")
	if c.settle(id, c.keyed(), err) == unknown {
		c.slot = 0
		c.hangUp()
	}
}

// rollBack leaves no transaction on the session.
func (c *client) rollBack() {
	if !c.session.alive() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), labtest.Patience)
	defer cancel()
	if _, err := c.session.exec(ctx, "ROLLBACK"); err != nil {
		c.hung(ctx, "ROLLBACK")
		c.hangUp()
	}
}
