package resp

import (
	"bytes"
	"fmt"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func transactionCommands() []command {
	const group = "transactions"
	return []command{
		{"multi", 1, notQueued | always | isFast, 0, 0, 0, multi, group, "Begins a transaction."},
		{"exec", 1, notQueued | isFast, 0, 0, 0, exec, group, "Executes all commands of a transaction at once."},
		{"discard", 1, notQueued | always | isFast, 0, 0, 0, discard, group, "Gives a transaction up."},
		{"watch", -2, notQueued | isFast, 1, -1, 1, watch, group, "Makes the next EXEC depend on keys not changing."},
		{"unwatch", 1, always | isFast, 0, 0, 0, unwatch, group, "Forgets the watched keys."},
	}
}

// queue has the commands of a transaction until EXEC.
type queue struct {
	commands []queued
	bytes    int
	words    int  // arguments of all commands: even empty ones take memory
	spoiled  bool // a command was refused: EXEC will be refused
}

type queued struct {
	cmd  *command
	args [][]byte // copies
}

// transaction is a transaction that EXEC builds.
type transaction struct {
	commands []wire.Command
}

func multi(k *call) {
	if k.c.multi != nil {
		k.fail("ERR MULTI calls can not be nested")
		return
	}
	k.c.multi = new(queue)
	k.ok()
}

// enqueue queues a command for EXEC, or returns an error.
func (c *conn) enqueue(cmd *command, args [][]byte) (why string) {
	q := c.multi
	q.words += len(args)
	for _, a := range args {
		q.bytes += len(a)
	}
	if q.bytes > wire.MaxCommand || q.words > maxArgs || len(q.commands) >= wire.MaxItems {
		q.spoiled, q.commands = true, nil
		return "ERR the transaction is too large"
	}
	if q.spoiled { // it will not be executed
		return ""
	}
	kept := make([][]byte, len(args))
	for i, a := range args {
		kept[i] = bytes.Clone(a)
	}
	q.commands = append(q.commands, queued{cmd, kept})
	return ""
}

func discard(k *call) {
	if k.c.multi == nil {
		k.fail("ERR DISCARD without MULTI")
		return
	}
	k.c.multi, k.c.watched = nil, watched{}
	k.ok()
}

// exec makes one command of the store out of all queued commands. Commands that do not concern
// the store, such as PING, are answered here, and their answers take their places among the
// results.
func exec(k *call) {
	c := k.c
	q, guards := c.multi, c.watched.revisions
	if q == nil {
		k.fail("ERR EXEC without MULTI")
		return
	}
	c.multi, c.watched = nil, watched{}
	if q.spoiled {
		k.fail("EXECABORT Transaction discarded because of previous errors.")
		return
	}
	t := transaction{commands: make([]wire.Command, 0, len(q.commands))}
	parts := make([]answer, len(q.commands))
	for i, command := range q.commands {
		inner := call{
			c: c, cmd: command.cmd, args: command.args, to: &parts[i], reply: k.reply, txn: &t,
			encoder: encoder{proto: c.proto},
		}
		command.cmd.run(&inner)
		inner.end()
	}
	c.caching = cachingDefault
	cmd := wire.Command{Verb: wire.Transaction, Commands: t.commands}
	for key, revision := range guards {
		cmd.Guards = append(cmd.Guards, wire.Guard{Key: key, Revision: revision})
	}
	if err := cmd.Validate(); err != nil {
		k.fail("EXECABORT Transaction discarded: " + err.Error())
		return
	}
	k.reply.parts = parts
	if len(cmd.Commands) == 0 && len(cmd.Guards) == 0 {
		return // all revisions are known
	}
	k.asked = true
	k.reply.cost += c.roomFor(&cmd)
	c.batch = append(c.batch, Request{Command: cmd, Level: c.level, Reply: k.reply})
}

// watched has the keys of WATCH, as many as a transaction may depend on.
type watched struct {
	revisions map[string]uint64
	bytes     int // of the keys
}

// add returns the new ones among keys, or false if there are too many.
func (w *watched) add(keys [][]byte) (fresh []string, ok bool) {
	if w.revisions == nil {
		w.revisions = make(map[string]uint64)
	}
	for _, k := range keys {
		key := string(k)
		if _, known := w.revisions[key]; known {
			continue
		}
		if w.bytes += len(key); w.bytes > wire.MaxCommand || len(w.revisions) == wire.MaxItems {
			return nil, false
		}
		w.revisions[key] = wire.Never // in case it cannot be read
		fresh = append(fresh, key)
	}
	return fresh, true
}

// watch reads the revisions of keys. The connection executes no other command before it knows
// them.
func watch(k *call) {
	c := k.c
	if c.multi != nil {
		k.fail("ERR WATCH inside MULTI is not allowed")
		return
	}
	fresh, ok := c.watched.add(k.args[1:])
	if !ok {
		c.watched = watched{revisions: map[string]uint64{"": wire.Never}} // EXEC fails as well
		k.fail(fmt.Sprintf("ERR too many watched keys: a transaction depends on %d of them at most, of %d bytes", wire.MaxItems, wire.MaxCommand))
		return
	}
	if len(fresh) == 0 {
		k.ok()
		return
	}
	c.barrier = true
	k.level = Strong
	k.ask(wire.Command{Verb: wire.Many, Options: wire.KeysOnly, Keys: fresh}, shape{render: c.renderWatch, extra: fresh})
}

// renderWatch runs while the reader waits at its barrier.
func (c *conn) renderWatch(e *encoder, s *shape, r []wire.Result) {
	missing := uint64(0)
	if r[0].Revision > 0 && c.srv.backend.Status().Format >= wire.FormatUntouched {
		missing = wire.Untouched | r[0].Revision
	}
	for i, key := range s.extra.([]string) {
		if i >= len(r[0].Results) {
			break
		}
		if c.watched.revisions[key] = r[0].Results[i].Revision; !r[0].Results[i].Found {
			c.watched.revisions[key] = missing
		}
	}
	e.ok()
}

func unwatch(k *call) {
	if k.txn == nil {
		k.c.watched = watched{}
	}
	k.ok()
}
