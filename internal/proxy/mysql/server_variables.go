package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/mysql/catalogue"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// This file handles what the server reports by itself: variables that change without a SET, and
// variables that it reports to clients by default.

// fixedSQL queries the session variables of MariaDB that cannot be set, and the new names of
// others.
const fixedSQL = "SELECT LOWER(VARIABLE_NAME) FROM information_schema.SYSTEM_VARIABLES WHERE VARIABLE_SCOPE<>'GLOBAL' AND (READ_ONLY='YES' OR VARIABLE_NAME IN ('TRANSACTION_ISOLATION','TRANSACTION_READ_ONLY'))" + catalogue.AllRows

// alwaysFixed are such variables of all servers: the state of replication, and the server's own
// counts. MySQL has no table that lists them.
var alwaysFixed = map[string]bool{
	"last_gtid": true, "gtid_executed": true, "gtid_purged": true, "gtid_owned": true, "gtid_binlog_pos": true,
	"gtid_current_pos": true, "gtid_slave_pos": true, "gtid_binlog_state": true, "in_transaction": true,
	"error_count": true, "warning_count": true, "proxy_user": true, "external_user": true,
}

// isFixed reports whether only the server changes a session variable. It is then no setting of
// the client's, and cannot be replayed on another connection.
func (f *poolFacts) isFixed(name string) bool {
	lower := strings.ToLower(name)
	return alwaysFixed[lower] || f.fixed[lower]
}

// isFixedBytes is isFixed for a name as servers report it.
func (f *poolFacts) isFixedBytes(name []byte) bool {
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

// oneName returns the name under which weir keeps a variable that has two. The server reports
// it under the one that was set first on the connection.
func (f *poolFacts) oneName(name string) string {
	if n := newNames[name]; f.renamed[n] {
		return n
	}
	return name
}

// otherName returns the other name of a variable that has two, or "".
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

// learnReported records what the server reports to clients by default.
func (f *poolFacts) learnReported(variables, gtids string) {
	f.trackList, f.reported = variables, namesIn(variables)
	f.reportsGTID = !strings.EqualFold(gtids, "OFF") || f.isReported([]byte("last_gtid"))
}

// isReported reports whether clients get changes of a variable reported by default.
func (f *poolFacts) isReported(name []byte) bool { return listed(f.reported, name) }

// awaitsGTID reports whether the client gets the GTID of each of its transactions reported. The
// members of a group share one, which the server reports only at the end of the group.
func (sg *settings) awaitsGTID() bool {
	return sg.c.p.facts.reportsGTID && sg.c.caps.Has(mywire.CapSessionTrack)
}

// noteGTID records whose transaction a connection's last_gtid names. A group has one for all
// its members.
func (lt *leftDiagnostics) noteGTID(u *unit, state []byte) {
	for len(state) > 0 {
		ch, rest, err := mywire.ParseChange(state)
		if err != nil {
			return // track reports the error
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

// refusesGTID refuses a query of @@last_gtid that only another connection could answer, and
// reports whether it did. The session keeps its connection from then on.
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
	c.responder.refuseHere(dg.gone("@@last_gtid"))
	return true
}
