package mysql

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles KILL of a client of another weir. Unlike PostgreSQL's, the protocol has no
// cancel request that authenticates itself. So a weir logs in to the other's console with the
// secret that they share, and says for which user it asks.

// peerUser is the user name of a weir at another's console. There it may send nothing but a
// KILL, which is not forwarded again.
const peerUser = "weir_peer"

// elsewhere reports whether the client belongs to a weir that this one can reach.
func (k killRequest) elsewhere(cfg *Config) bool {
	peer := peerOf(k.id)
	return cfg.PeerID != 0 && peer != cfg.PeerID && cfg.Peers[peer] != "" && cfg.PeerSecret != ""
}

// passOn forwards the request to the client's own weir, and returns its error.
func (k killRequest) passOn(srv *Server) (said *mywire.Error) {
	cfg := srv.cfg()
	address := cfg.Peers[peerOf(k.id)]
	err := srv.Forwards.Do(srv.DialCtx, func(ctx context.Context) error {
		conn, err := mywire.Connect(ctx, mywire.ConnectConfig{
			Address: address, User: peerUser, Password: cfg.PeerSecret, Database: "weir", TLSMode: mywire.TLSPreferred,
		})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // it has answered
		if _, err = conn.Exec(ctx, k.text()); errors.As(err, &said) {
			return nil
		}
		return err
	})
	if err != nil {
		srv.Log.Warn("KILL not passed on", "peer", peerOf(k.id), "address", address, "error", err)
		return mywire.NewError(mywire.ErrUnknown, "weir could not ask weir %d, which has connection %d, to kill it: %v", peerOf(k.id), k.id, err)
	}
	return said
}

// text returns the command for the other weir's console.
func (k killRequest) text() string {
	what, as := "CONNECTION", "USER"
	if k.query {
		what = "QUERY"
	}
	if k.admin {
		as = "ADMIN"
	}
	return fmt.Sprintf("PEER KILL %s %d %s %x", what, k.id, as, k.user)
}

// parseKilling parses such a command.
func parseKilling(text string) (k killRequest, ok bool) {
	words := strings.Fields(text)
	if len(words) == 5 {
		words = append(words, "") // the user without a name
	}
	if len(words) != 6 || words[0] != "PEER" || words[1] != "KILL" {
		return k, false
	}
	id, err := strconv.ParseUint(words[3], 10, 32)
	user, bad := hex.DecodeString(words[5])
	k = killRequest{id: uint32(id), query: words[2] == "QUERY", user: string(user), admin: words[4] == "ADMIN"}
	return k, err == nil && bad == nil && isOurs(id) && (k.query || words[2] == "CONNECTION") && (k.admin || words[4] == "USER")
}

// isPeer reports whether a login to the console names the user of another weir.
func (c *Config) isPeer(user string) bool { return user == peerUser && c.PeerSecret != "" }

// peer executes another weir's command.
func (con *console) peer(text string) []byte {
	k, ok := parseKilling(text)
	if !ok {
		return con.refuse(mywire.NewError(mywire.ErrSyntax, "weir: that is nothing that one weir asks of another"))
	}
	ended := make(chan *mywire.Error, 1)
	k.here(con.srv, func(e *mywire.Error) { ended <- e })
	select {
	case e := <-ended:
		if e != nil {
			return con.refuse(e)
		}
		return con.fine()
	case <-con.ctx.Done():
		return con.refuse(mywire.NewError(mywire.ErrUnknown, "weir: %v", con.ctx.Err()))
	}
}
