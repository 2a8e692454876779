package postgres

import "strings"

// ownOperators makes the operators of weir's own queries refer to the server's. A name without a
// schema may belong to anyone who may create something in a schema of the search path: an
// operator that fits better is called, and the database's owner can set the path. But weir asks
// with the rights of the pool's user, perhaps a superuser, and before the client has sent
// anything, such as a new path. The texts contain no IN, CASE x WHEN, LIKE and IS DISTINCT FROM,
// which also use operators of the path.
var ownOperators = func() *strings.Replacer {
	var pairs []string
	for _, op := range []string{"=", "<>", "<", "<=", ">", ">=", "+", "-", "/", "||", "!~", "~~"} {
		pairs = append(pairs, " "+op+" ", " OPERATOR(pg_catalog."+op+") ")
	}
	return strings.NewReplacer(pairs...)
}()

// own is a query with the server's own operators.
func own(sql string) string { return ownOperators.Replace(sql) }
