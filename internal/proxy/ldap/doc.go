// Package ldap checks names and passwords with an LDAP server, with the options of PostgreSQL's
// authentication method ldap. The distinguished name is either built from the user name (simple
// bind: ldapprefix, ldapsuffix) or searched for (search+bind: ldapbasedn and related options).
// The password is right if the server accepts a bind with both.
package ldap
