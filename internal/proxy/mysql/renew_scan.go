package mysql

import (
	"regexp"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file finds the statements that change how new sessions begin: see renew.go.

// newSessions matches the statements about accounts and databases among DDL and administrative
// ones. It may match too many: the worst effect is that idle connections are replaced.
var newSessions = regexp.MustCompile(strings.ReplaceAll(
	`(?is)\b(grant|revoke|(create|alter|drop|rename|default) (or replace )?(user|role)|flush\b[^;]*\bprivileges|alter (database|schema))\b`,
	" ", `(?:\s|/\*M?!\d*|/\*.*?\*/|(?:--|#)[^\n]*\n)+`)) // an executable comment matches only at its beginning

// maxReachText is how much of such a text is matched; these statements are short.
const maxReachText = 4 << 10

// changesSessions reports whether a statement may change how new sessions begin.
func changesSessions(sql string, eff myscan.Effect) bool {
	if eff.Has(myscan.EffSetGlobal) {
		return true
	}
	return eff.Has(myscan.EffDDL|myscan.EffAdmin) && newSessions.MatchString(sql[:min(len(sql), maxReachText)])
}
