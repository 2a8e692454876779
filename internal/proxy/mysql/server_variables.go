package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file is what the server tells of sessions by itself: variables that change
// without anybody setting them, and variables of which clients are told unless they
// say otherwise.

// fixedSQL asks MariaDB for the session variables that nobody can set, and for the new
// names of others.
const fixedSQL = "SELECT LOWER(VARIABLE_NAME) FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_SCOPE<>'GLOBAL' AND (READ_ONLY='YES' OR VARIABLE_NAME IN ('TRANSACTION_ISOLATION','TRANSACTION_READ_ONLY'))" + allRows

// alwaysFixed are such variables of all servers: the state of replication, and what
// a server counts. MySQL has no table that tells.
var alwaysFixed = map[string]bool{
	"last_gtid": true, "gtid_executed": true, "gtid_purged": true, "gtid_owned": true, "gtid_binlog_pos": true,
	"gtid_current_pos": true, "gtid_slave_pos": true, "gtid_binlog_state": true, "in_transaction": true,
	"error_count": true, "warning_count": true, "proxy_user": true, "external_user": true,
}

// isFixed reports whether a session variable is one that only the server changes. It
// says nothing of what a client has set, and cannot be brought to another connection.
func (f *poolFacts) isFixed(name string) bool {
	lower := strings.ToLower(name)
	return alwaysFixed[lower] || f.fixed[lower]
}

// fixes is isFixed of a name as servers tell it.
func (f *poolFacts) fixes(name []byte) bool {
	return alwaysFixed[string(name)] || f.fixed[string(name)]
}

func (f *poolFacts) learnFixed(rows [][][]byte) {
	f.fixed, f.renamed = make(map[string]bool, len(rows)), make(map[string]bool)
	for _, r := range rows {
		switch name := string(r[0]); name {
		case "transaction_isolation", "transaction_read_only":
			f.renamed[name] = true
		default:
			f.fixed[name] = true
		}
	}
}

// newNames are the names that variables of MariaDB have since 11.1, beside their old ones.
var newNames = map[string]string{"tx_isolation": "transaction_isolation", "tx_read_only": "transaction_read_only"}

// oneName is the name by which a variable is kept that the server has under two. It tells
// of it by that which was set first on the connection.
func (f *poolFacts) oneName(name string) string {
	if n := newNames[name]; f.renamed[n] {
		return n
	}
	return name
}

// otherName is the other name of a variable that the server has under two; "" if it has
// one.
func (f *poolFacts) otherName(name string) string {
	for old, n := range newNames {
		switch {
		case !f.renamed[n]:
		case strings.EqualFold(name, old):
			return n
		case strings.EqualFold(name, n):
			return old
		}
	}
	return ""
}

// learnTold keeps what the server's own settings have it tell clients.
func (f *poolFacts) learnTold(variables, gtids string) {
	f.trackList, f.told = variables, namesIn(variables)
	f.tellsGTID = !strings.EqualFold(gtids, "OFF") || f.tells([]byte("last_gtid"))
}

// tells reports whether clients are told of a variable unless they say otherwise.
func (f *poolFacts) tells(name []byte) bool { return listed(f.told, name) }

// awaitsGTID reports whether the client is told the GTID of each of its transactions. The
// members of a group share one, which is told only when the group has ended.
func (sg *settings) awaitsGTID() bool {
	return sg.c.p.facts.tellsGTID && sg.c.caps.Has(mywire.CapSessionTrack)
}

// noteGTID takes note of whose transaction a connection's last_gtid names. A group has
// one for all its members.
func (lt *leftDiagnostics) noteGTID(u *unit, state []byte) {
	for len(state) > 0 {
		ch, rest, err := mywire.ParseChange(state)
		if err != nil {
			return // track reports it
		}
		state = rest
		if ch.Kind != mywire.TrackSystemVariables || !lt.b.p.facts.isGTID(ch.Name) {
			continue
		}
		lt.hasGTID, lt.gtidOf = true, nil
		if c := u.c; u.kind == unitClient && c != nil && lt.b.owner == c {
			lt.gtidOf, c.diag.wroteGTID = c, true
		}
	}
}

// refusesGTID answers a question about @@last_gtid that only another connection could
// answer, and reports whether it did. The session keeps its connection from then on.
func (dg *diagnostics) refusesGTID(sql string) bool {
	c := dg.c
	b := c.link
	if b == nil || c.pins.held&pinGTID != 0 || !strings.Contains(strings.ToLower(sql), "last_gtid") {
		return false
	}
	c.pins.add(pinGTID)
	if b.gtidOf == c || !b.hasGTID && !dg.wroteGTID {
		return false
	}
	c.responder.refuseHere(gone("@@last_gtid"))
	return true
}
