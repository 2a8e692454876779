// Package ldap checks names and passwords with an LDAP server, as PostgreSQL's
// authentication method ldap does and with the same options. Either the name makes the
// distinguished name (simple bind: ldapprefix, ldapsuffix), or it is looked for
// (search+bind: ldapbasedn and what belongs to it); the password is right if the server
// takes a bind with both.
package ldap
