package core

import (
	"context"
	"strings"
	"time"
)

// A ShutdownMode says how a server, or the whole process, ends.
type ShutdownMode string

// The endings, in PgBouncer's words.
const (
	// ShutdownNow aborts transactions.
	ShutdownNow ShutdownMode = ""
	// ShutdownAfterServers lets transactions end, however long they take; clients
	// without one leave at once.
	ShutdownAfterServers ShutdownMode = "WAIT_FOR_SERVERS"
	// ShutdownAfterClients takes no new clients and waits until all have left.
	ShutdownAfterClients ShutdownMode = "WAIT_FOR_CLIENTS"
)

// endless stands for a drain without a time limit.
const endless = 100 * 365 * 24 * time.Hour

// shutdown answers SHUTDOWN, which begins when the client has been answered.
func (c *Control[L]) shutdown(args []string) (Answer, error) {
	how := ShutdownMode(strings.ToUpper(strings.Join(args, " ")))
	switch how {
	case ShutdownNow, ShutdownAfterServers, ShutdownAfterClients:
	default:
		return Answer{}, refuse("SHUTDOWN takes WAIT_FOR_SERVERS, WAIT_FOR_CLIENTS or nothing")
	}
	if c.s.Process == nil {
		return Answer{}, refuse("this weir is not to be shut down from here")
	}
	c.s.Log.Warn("console: shutdown", "how", string(how))
	return Answer{Tag: "SHUTDOWN", Then: func() { c.s.Process.End(how) }}, nil
}

// End ends Serve in another way than the end of its context does. The last of several calls
// counts, but an end that has begun cannot be undone.
func (s *Server[L]) End(how ShutdownMode) {
	s.stopping.Store(true)
	s.stopAccepting()
	if how == ShutdownAfterClients {
		select {
		case s.emptied <- struct{}{}:
		default: // it is already being waited for
		}
		return
	}
	patience := time.Duration(0)
	if how == ShutdownAfterServers {
		patience = endless
	}
	for _, l := range s.Loops {
		l.Post(func() { l.SetPatience(patience) })
	}
	s.stop()
}

// awaitEmpty ends Serve when all clients have left, after a call of End has asked for that.
func (s *Server[L]) awaitEmpty(ctx context.Context) {
	select {
	case <-s.emptied:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for s.Sessions.Load() > s.Consoles.Load() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	s.stop()
}
