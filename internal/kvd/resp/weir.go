package resp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func weirCommands() []command {
	const group = "weir"
	return []command{
		{"weir.level", -1, always | isFast, 0, 0, 0, levelOf, group, "Chooses the consistency of this connection: strong, session or local."},
		{"weir.get", 2, isRead | isFast, 1, 1, 1, weirGet, group, "Returns the value of a key and its revision."},
		{"weir.set", -3, isWrite, 1, 1, 1, weirSet, group, "SET with REV and LEASE; returns the revision of the write."},
		{"weir.cas", 4, isWrite | isFast, 1, 1, 1, weirCAS, group, "Sets a key whose revision is as given (0: that does not exist); returns the new revision."},
		{"weir.lease", -2, isWrite, 0, 0, 0, lease, group, "GRANT ttl-ms, KEEP id, REVOKE id, TTL id. The id is a fencing token: it only grows."},
		{"weir.token", -1, notInMulti | always, 0, 0, 0, token, group, "Returns what this connection has seen, or makes it see at least what another has."},
		{"weir.status", 1, always, 0, 0, 0, status, group, "Describes the replica."},
		{"weir.watch", -2, notInMulti | always, 0, 0, 0, weirWatch, group, "Shows all changes of keys with a prefix, as they are committed. RESP3."},
		{"weir.unwatch", -1, notInMulti | always, 0, 0, 0, weirUnwatch, group, "Ends WEIR.WATCH, of all prefixes or of some."},
	}
}

func levelOf(k *call) {
	switch {
	case len(k.args) == 1:
		k.text(k.c.level.String())
		return
	case len(k.args) > 2:
		k.fail(wrongNumber("weir.level"))
		return
	case is(k.args[1], "STRONG"):
		k.c.level = Strong
	case is(k.args[1], "SESSION"):
		k.c.level = OwnSession
	case is(k.args[1], "LOCAL"):
		k.c.level = Local
	default:
		k.fail("ERR level must be strong, session or local")
		return
	}
	k.ok()
}

func weirGet(k *call) {
	k.ask(wire.Command{Verb: wire.Get, Key: borrow(k.args[1])}, shape{render: renderRevised})
}

// renderRevised renders a value and its revision, or null.
func renderRevised(e *encoder, _ *shape, r []wire.Result) {
	if r[0].Code == wire.NotFound {
		e.nullArray()
		return
	}
	e.array(2)
	e.bulk(r[0].Value)
	e.int(int64(r[0].Revision))
}

func weirSet(k *call) {
	s := setting{cmd: wire.Command{Verb: wire.Set, Key: borrow(k.args[1]), Value: k.args[2]}}
	why := k.setOptions(&s, k.args[3:], "")
	if why == "" && s.old {
		why = "ERR WEIR.SET returns a revision, and no old value"
	}
	if why != "" {
		k.fail(why)
		return
	}
	k.askRevision(s.cmd)
}

func weirCAS(k *call) {
	revision, ok := parseInt(k.args[2])
	if !ok || revision < 0 {
		k.fail(notAnInteger)
		return
	}
	k.askRevision(wire.Command{
		Verb: wire.Set, Cond: wire.IfRevision, Key: borrow(k.args[1]), Value: k.args[3], Revision: uint64(revision),
	})
}

// askRevision answers with the revision of the write, or null if its condition does not hold. A
// transaction has one revision, which its commands do not return.
func (k *call) askRevision(cmd wire.Command) {
	if k.txn != nil {
		k.fail("ERR " + k.cmd.name + " shows its revision, which is not known inside a transaction: use SET with WEIR.REV")
		return
	}
	k.certain = true
	k.ask(cmd, shape{render: renderRevision})
}

func renderRevision(e *encoder, _ *shape, r []wire.Result) {
	switch r[0].Code {
	case wire.OK:
		e.int(int64(r[0].Revision))
	case wire.NotMet:
		e.null()
	default:
		e.fail(textOf(&r[0]))
	}
}

const leaseUsage = "ERR WEIR.LEASE takes GRANT ttl-ms, KEEP id, REVOKE id or TTL id"

func lease(k *call) {
	if len(k.args) != 3 {
		k.fail(leaseUsage)
		return
	}
	n, ok := parseInt(k.args[2])
	if !ok || n <= 0 {
		k.fail(notAnInteger)
		return
	}
	switch {
	case is(k.args[1], "GRANT"):
		if n > wire.MaxTTL {
			k.fail("ERR invalid expire time in 'weir.lease' command")
			return
		}
		k.ask(wire.Command{Verb: wire.LeaseGrant, TTL: n}, shape{render: renderLease})
	case is(k.args[1], "KEEP"):
		k.ask(wire.Command{Verb: wire.LeaseKeep, Lease: uint64(n)}, shape{render: renderLease})
	case is(k.args[1], "REVOKE"):
		k.ask(wire.Command{Verb: wire.LeaseRevoke, Lease: uint64(n)}, shape{render: renderMet})
	case is(k.args[1], "TTL"):
		k.ask(wire.Command{Verb: wire.LeaseTTL, Lease: uint64(n)}, shape{render: renderLeaseTTL})
	default:
		k.fail(leaseUsage)
	}
}

// renderLease renders a number, or an error if the lease has ended, which its holder must not
// miss.
func renderLease(e *encoder, _ *shape, r []wire.Result) {
	if r[0].Code != wire.OK {
		e.fail(textOf(&r[0]))
		return
	}
	e.int(r[0].Number)
}

// renderLeaseTTL renders the remaining time, or -2 if the lease has ended, as TTL does.
func renderLeaseTTL(e *encoder, _ *shape, r []wire.Result) {
	if r[0].Code != wire.OK {
		e.int(-2)
		return
	}
	e.int(r[0].Number)
}

// token answers "view:index". It is rendered after the answers of all earlier commands.
func token(k *call) {
	if len(k.args) > 2 {
		k.fail(wrongNumber("weir.token"))
		return
	}
	c := k.c
	if len(k.args) == 2 {
		v, i, ok := strings.Cut(string(k.args[1]), ":")
		view, err := strconv.ParseUint(v, 10, 64)
		index, also := strconv.ParseUint(i, 10, 64)
		if !ok || err != nil || also != nil {
			k.fail("ERR a token is two numbers with a colon between them")
			return
		}
		c.session.Advance(view, index)
		k.ok()
		return
	}
	c.barrier = true
	k.to.shape = shape{n: 1, render: func(e *encoder, _ *shape, _ []wire.Result) {
		view, index := c.session.Token()
		e.text(fmt.Sprintf("%d:%d", view, index))
	}}
	k.reply.Done(noResult, nil)
	k.asked = true
}

func status(k *call) {
	details := k.c.srv.backend.Status().details()
	k.dict(len(details))
	for _, d := range details {
		k.text(d.Name)
		k.text(d.Value)
	}
}

func weirWatch(k *call) {
	c := k.c
	if c.proto < 3 {
		k.fail("ERR changes need RESP3: send HELLO 3 first")
		return
	}
	l := &c.listener
	watched := slices.Clone(l.watched)
	for _, a := range k.args[1:] {
		if prefix := string(a); len(watched) <= maxPrefixes && !slices.Contains(watched, prefix) {
			watched = append(watched, prefix)
		}
	}
	if why := tooManyPrefixes(watched...); why != "" {
		k.fail(why)
		return
	}
	c.srv.tracker.set(l, func() { l.watched = watched })
	k.ok()
}

func weirUnwatch(k *call) {
	l := &k.c.listener
	k.c.srv.tracker.set(l, func() {
		if len(k.args) == 1 {
			l.watched = nil
			return
		}
		var rest []string
		for _, prefix := range l.watched {
			gone := false
			for _, a := range k.args[1:] {
				gone = gone || string(a) == prefix
			}
			if !gone {
				rest = append(rest, prefix)
			}
		}
		l.watched = rest
	})
	k.ok()
}
