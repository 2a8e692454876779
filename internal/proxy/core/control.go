package core

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// This file has the console's commands that do something: they pause databases, close
// connections, and disconnect clients. Commands for the whole process go to Process.

// A Process is what the console needs of the process that the server runs in.
type Process interface {
	// Reload reads the configuration again. If the new one is invalid, the former one
	// remains, and the error says why.
	Reload() error
	// End ends the process.
	End(how ShutdownMode)
}

// A Gate is the state of a database: whether logins are accepted, and whether statements run.
type Gate struct {
	// Paused: no statement begins, and logins wait.
	Paused bool
	// Disabled: logins are refused.
	Disabled bool
}

// gates are the states of all databases. Safe for concurrent use.
type gates struct {
	mu      sync.Mutex
	all     bool            // guarded by mu: every database is paused
	frozen  bool            // guarded by mu: ... and nothing is read: SUSPEND
	states  map[string]Gate // guarded by mu: without databases that are open
	changed chan struct{}   // guarded by mu: closed at each change
}

// set changes the state of a database, and reports whether it is different now.
func (g *gates) set(database string, change func(*Gate)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.states[database]
	now := was
	change(&now)
	if g.states == nil {
		g.states = make(map[string]Gate)
	}
	if g.states[database] = now; now == (Gate{}) {
		delete(g.states, database)
	}
	g.tell()
	return now != was
}

// setAll pauses or resumes everything, and reports whether that changed anything.
func (g *gates) setAll(paused bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	differs := g.all != paused
	g.all, g.frozen = paused, g.frozen && paused
	for name, s := range g.states {
		if s.Paused && !paused {
			differs = true
			if s.Paused = false; s == (Gate{}) {
				delete(g.states, name)
			} else {
				g.states[name] = s
			}
		}
	}
	g.tell()
	return differs
}

// suspend pauses everything, and stops all reading. It reports whether that was not so
// already.
func (g *gates) suspend() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all {
		return false
	}
	g.all, g.frozen = true, true
	g.tell()
	return true
}

// suspended reports whether reading has stopped.
func (g *gates) suspended() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.frozen
}

// tell wakes everyone that waits for a change. g.mu is held.
func (g *gates) tell() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// of returns the state of a database, and a channel that is closed when it may have changed.
func (g *gates) of(database string) (Gate, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	s := g.states[database]
	s.Paused = s.Paused || g.all
	return s, g.changed
}

// list returns the states of databases that are not open, and whether everything is paused.
func (g *gates) list() (states map[string]Gate, all bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.states), g.all
}

// A Control executes the console's commands on a server: it pauses databases, closes
// connections, and disconnects clients.
type Control[L EventLoop] struct {
	s     *Server[L]
	gates gates
}

// AllPaused reports whether every database is paused.
func AllPaused[L EventLoop](s *Server[L]) bool {
	_, all := s.gates.list()
	return all
}

// Suspended reports whether nothing is read from clients and servers.
func (c *Control[L]) Suspended() bool { return c.gates.suspended() }

// GateOf returns the state of a database.
func (c *Control[L]) GateOf(database string) Gate {
	state, _ := c.gates.of(database)
	return state
}

// Admit makes a login wait while its database is paused. It returns false if logins to the
// database are refused, and an error if it stays paused for as long as ctx allows.
func (c *Control[L]) Admit(ctx context.Context, database string) (bool, error) {
	for {
		state, changed := c.gates.of(database)
		switch {
		case state.Disabled:
			return false, nil
		case !state.Paused:
			return true, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if c.s.Stopping() {
				return true, netloop.ErrStopped
			}
			return true, ErrPaused(database)
		}
	}
}

// ErrPaused is why a login to a paused database failed.
func ErrPaused(database string) error {
	return fmt.Errorf("database %q is paused, and was not resumed in time", database)
}

// run executes a command that does something.
func (c *Control[L]) run(ctx context.Context, verb string, args []string, text string) (Answer, error) {
	done := Answer{Tag: verb}
	var database string
	switch verb {
	case "PAUSE", "RESUME", "RECONNECT", "WAIT_CLOSE", "KILL", "DISABLE", "ENABLE":
		if len(args) > 1 {
			return Answer{}, refuse("%s takes one database", verb)
		}
		if len(args) == 1 {
			database = args[0]
		}
		switch {
		case IsAdminDatabase(database):
			return Answer{}, refuse("database %q is the console itself", database)
		case database == "" && (verb == "DISABLE" || verb == "ENABLE"):
			return Answer{}, refuse("%s needs the name of a database", verb)
		}
		done.Notice = c.unused(ctx, database)
	}
	switch verb {
	case "PAUSE", "RESUME", "RECONNECT", "KILL":
		s := c.s
		defer s.Cache.Purge(database) // the database may have other servers after this
	}
	switch verb {
	case "PURGE":
		return done, c.purge(args)
	case "PAUSE":
		wait, err := c.Hold(ctx, database)
		if err != nil {
			return done, err
		}
		return done, wait(ctx)
	case "RESUME":
		return done, c.resume(ctx, database)
	case "RECONNECT":
		c.s.Monitor.Forget()
		return done, c.s.onLoops(ctx, func(l L) { l.Reconnect(database) })
	case "WAIT_CLOSE":
		return done, c.await(ctx, serverConnections, func(l L) int { return l.Retired(database) }, nil)
	case "KILL":
		return done, c.kill(ctx, database)
	case "KILL_CLIENT":
		return done, c.killClient(ctx, args)
	case "DISABLE", "ENABLE":
		if !c.gates.set(database, func(g *Gate) { g.Disabled = verb == "DISABLE" }) {
			return Answer{}, refuse("database %q is %sd already", database, strings.ToLower(verb))
		}
		c.s.Log.Info("console: logins "+map[bool]string{true: "are refused", false: "are allowed"}[verb == "DISABLE"], "database", database)
		return done, nil
	case "RELOAD":
		if c.s.Process == nil {
			return Answer{}, refuse("this weir has no configuration to read again")
		}
		if err := c.s.Process.Reload(); err != nil {
			return Answer{}, &Refusal{Message: "reload refused, everything stays as it was: " + err.Error()}
		}
		return done, nil
	case "SUSPEND":
		if len(args) > 0 {
			return Answer{}, refuse("SUSPEND is about everything: it takes no database")
		}
		return done, c.suspend(ctx)
	case "SHUTDOWN":
		return c.shutdown(args)
	}
	return Answer{}, unknownCommand(text)
}

// unused is the notice for a database that no client has used lately. The name may be
// mistyped; but such a command must not fail, since clients may come later.
func (c *Control[L]) unused(ctx context.Context, database string) string {
	used := database == "" || database == c.s.side.Database()
	if !used {
		if err := c.s.onLoops(ctx, func(l L) { used = used || l.Uses(database) }); err != nil {
			return "" // the command itself fails on that, too
		}
	}
	if used {
		return ""
	}
	return fmt.Sprintf("no client of this weir has used database %q lately: is the name right?", database)
}

// purge empties the cache, or removes the answers with a tag.
func (c *Control[L]) purge(args []string) error {
	switch {
	case len(args) == 0 || !strings.EqualFold(args[0], "CACHE") || len(args) > 2:
		return refuse("PURGE CACHE takes a tag, or nothing for all answers")
	case len(args) == 2:
		c.s.Cache.PurgeTag(args[1])
		c.s.Log.Info("console: answers purged", "tag", args[1])
	default:
		c.s.Cache.Purge("")
		c.s.Cache.Sweep()
		c.s.Log.Info("console: all answers purged")
	}
	return nil
}

// Hold is the first half of PAUSE: it stops the statements of a database, or of all for "".
// The second half, wait, returns when no server connection is left. It fails if RESUME comes
// first.
func (c *Control[L]) Hold(ctx context.Context, database string) (wait func(context.Context) error, err error) {
	if !c.setPaused(database, true) {
		return nil, refuse("%s is paused already", nameOf(database))
	}
	c.s.Log.Info("console: paused", "database", cmp.Or(database, "all"))
	if err := c.s.onLoops(ctx, func(l L) { holdBack(c, l, database) }); err != nil {
		return nil, err
	}
	c.s.side.LetGo()
	return func(ctx context.Context) error {
		return c.await(ctx, serverConnections, func(l L) int { return l.Backends(database) }, func() error {
			if c.isPaused(database) {
				return nil
			}
			return refuse("%s was resumed before all its server connections were closed", nameOf(database))
		})
	}, nil
}

// suspend stops reading from clients and servers, and makes logins wait. It returns when all
// output has been written.
func (c *Control[L]) suspend(ctx context.Context) error {
	if !c.gates.suspend() {
		return refuse("weir is paused already")
	}
	c.s.Log.Info("console: suspended")
	if err := c.s.onLoops(ctx, func(l L) { l.Suspend(c.gates.suspended()) }); err != nil {
		return err
	}
	return c.await(ctx, "connections have output that the other side has not taken", L.Unwritten, func() error {
		if c.gates.suspended() {
			return nil
		}
		return refuse("weir was resumed before everything was written")
	})
}

// holdBack pauses a database on a loop, unless it was resumed before the loop gets
// to it: RESUME may overtake PAUSE.
func holdBack[L EventLoop](c *Control[L], l L, database string) {
	if c.isPaused(database) {
		l.Pause(database)
	}
}

// resume ends PAUSE, SUSPEND and KILL.
func (c *Control[L]) resume(ctx context.Context, database string) error {
	if !c.setPaused(database, false) {
		return refuse("%s is not paused", nameOf(database))
	}
	if _, all := c.gates.list(); all {
		return refuse("all databases are paused: RESUME resumes them")
	}
	c.s.Log.Info("console: resumed", "database", cmp.Or(database, "all"))
	return c.s.onLoops(ctx, func(l L) {
		if !c.isPaused(database) { // again
			l.Suspend(c.gates.suspended())
			l.Resume(database)
		}
	})
}

// setPaused changes the state of the database, or of all, and reports whether it is different now.
func (c *Control[L]) setPaused(database string, paused bool) bool {
	if database == "" {
		return c.gates.setAll(paused)
	}
	if _, all := c.gates.list(); all {
		return !paused // which is refused with a reason
	}
	return c.gates.set(database, func(g *Gate) { g.Paused = paused })
}

func (c *Control[L]) isPaused(database string) bool {
	if database == "" {
		_, all := c.gates.list()
		return all
	}
	return c.GateOf(database).Paused
}

func nameOf(database string) string {
	if database == "" {
		return "weir"
	}
	return "database " + strconv.Quote(database)
}

// kill disconnects all clients, closes all server connections of a database, and pauses it.
func (c *Control[L]) kill(ctx context.Context, database string) error {
	if !c.setPaused(database, true) {
		return refuse("%s is paused already", nameOf(database))
	}
	c.s.Log.Warn("console: all connections are closed", "database", cmp.Or(database, "all"))
	return c.s.onLoops(ctx, func(l L) {
		holdBack(c, l, database)
		l.Kill(database)
	})
}

// killClient disconnects one client.
func (c *Control[L]) killClient(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return refuse("KILL_CLIENT needs the id of a client, as SHOW CLIENTS has it")
	}
	id, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return refuse("%q is not the id of a client", args[0])
	}
	l, found := c.s.Owner(uint32(id))
	if found {
		if err := l.Call(ctx, func() { found = l.KillClient(uint32(id)) }); err != nil {
			return err
		}
	}
	if !found {
		return refuse("there is no client %d", id)
	}
	return nil
}

// awaitEvery is how often a waiting command asks the loops.
const awaitEvery = 10 * time.Millisecond

// serverConnections is what most commands wait for.
const serverConnections = "server connections are open"

// await waits until count returns 0 on all loops. given, unless it is nil, returns an error
// if the wait must end for another reason.
func (c *Control[L]) await(ctx context.Context, what string, count func(l L) int, given func() error) error {
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for {
		left := 0
		if err := c.s.onLoops(ctx, func(l L) { left += count(l) }); err != nil {
			return err
		}
		if given != nil {
			if err := given(); err != nil {
				return err
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return refuse("given up while %d %s", left, what)
		}
	}
}

// The commands in the order of HELP.
var commands = []string{
	"DISABLE db", "ENABLE db", "KILL [db]", "KILL_CLIENT id", "PAUSE [db]", "PURGE CACHE [tag]", "RECONNECT [db]", "RELOAD", "RESUME [db]",
	"SHUTDOWN [WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS]", "SUSPEND", "WAIT_CLOSE [db]",
}

// of reports whether a command about one database, or all for "", is about this one.
func of(database, about string) bool { return about == "" || database == about }

// Pause stops the statements of a database, or of all for "".
func (l *Loop[K, P, C]) Pause(database string) { l.eachPool(database, P.Pause) }

// Resume ends Pause.
func (l *Loop[K, P, C]) Resume(database string) { l.eachPool(database, P.Resume) }

// Reconnect replaces the backends of a database when they are next free.
func (l *Loop[K, P, C]) Reconnect(database string) { l.eachPool(database, P.Reconnect) }

func (l *Loop[K, P, C]) eachPool(database string, f func(P)) {
	for _, p := range l.PoolList {
		if name, _ := p.Name(); of(name, database) {
			f(p)
		}
	}
}

// Uses reports whether there is a pool of a database.
func (l *Loop[K, P, C]) Uses(database string) (uses bool) {
	l.eachPool(database, func(P) { uses = true })
	return uses
}

// Kill disconnects the clients of a database and then closes its backends.
func (l *Loop[K, P, C]) Kill(database string) {
	for _, c := range l.Clients {
		if of(c.Info().Database, database) {
			c.Kill()
		}
	}
	l.eachPool(database, P.CloseAll)
}

// KillClient disconnects a client; it returns false if the client is not on the loop.
func (l *Loop[K, P, C]) KillClient(id uint32) bool {
	c, ok := l.Clients[id]
	if ok {
		c.Kill()
	}
	return ok
}

// Backends counts the server connections of a database, including those being opened.
func (l *Loop[K, P, C]) Backends(database string) (n int) {
	l.eachPool(database, func(p P) {
		n += p.Connections()
		for _, b := range p.Servers() {
			if b.Beside {
				n++
			}
		}
	})
	return n
}

// Retired counts those that will be closed when they are free.
func (l *Loop[K, P, C]) Retired(database string) (n int) {
	l.eachPool(database, func(p P) {
		for _, b := range p.Servers() {
			if b.Retired {
				n++
			}
		}
	})
	return n
}

// databases adds the databases that are known in other ways to those seen, and sorts them.
func (s *Server[L]) databases(seen map[string]bool) []string {
	states, _ := s.gates.list()
	for name := range states {
		seen[name] = true
	}
	seen[s.side.Database()] = true
	delete(seen, "")
	return slices.Sorted(maps.Keys(seen))
}
