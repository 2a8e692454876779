package core

import (
	"fmt"
	"sync"

	"github.com/weirdb/weir/internal/proxy/session"
)

// SessionCounts are the numbers of sessions of each database and of each user. Safe for concurrent
// use.
type SessionCounts struct {
	mu               sync.Mutex
	databases, users map[string]int       // guarded by mu
	refused          map[[2]string]uint64 // guarded by mu: logins, by database and user
}

// Enter counts a client that has logged in. Its error says which limit the client would
// exceed; it is not counted then. o are the current options.
func (c *SessionCounts) Enter(o *session.Options, database, user string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.databases == nil {
		c.databases, c.users, c.refused = make(map[string]int), make(map[string]int), make(map[[2]string]uint64)
	}
	var err error
	if most := o.LimitsOfDatabase(database).MaxDBClients; most > 0 && c.databases[database] >= most {
		err = fmt.Errorf("too many clients of database %q (--max-db-client-connections of weir is %d)", database, most)
	} else if most := o.LimitsOfUser(user).MaxUserClients; most > 0 && c.users[user] >= most {
		err = fmt.Errorf("too many clients of user %q (--max-user-client-connections of weir is %d)", user, most)
	}
	if err != nil {
		if len(c.refused) < maxRefused {
			c.refused[[2]string{database, user}]++
		}
		return err
	}
	c.databases[database]++
	c.users[user]++
	return nil
}

// maxRefused bounds the pairs of database and user for which refused logins are counted
// separately.
const maxRefused = 1000

// Leave undoes Enter.
func (c *SessionCounts) Leave(database, user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.databases[database]--; c.databases[database] <= 0 {
		delete(c.databases, database)
	}
	if c.users[user]--; c.users[user] <= 0 {
		delete(c.users, user)
	}
}

// each calls f with the number of refused logins of each database and user.
func (c *SessionCounts) each(f func(database, user string, refused uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, n := range c.refused {
		f(k[0], k[1], n)
	}
}
