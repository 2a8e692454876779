package core

import (
	"maps"
	"sync"
)

// A Secret is what a server stores to check a password.
type Secret interface {
	// Plain returns the password itself, if the secret is one.
	Plain() (password string, ok bool)
}

// A User is an entry of the list of users that the proxy itself checks.
type User[S Secret] struct {
	Name   string
	Secret S
}

// Credentials are the secrets by which weir checks its clients, and the keys with which it
// logs in to the server, by user. K is what a login to the server needs. Safe for concurrent
// use.
type Credentials[S Secret, K any] struct {
	keys  func(password string) *K
	plain func(*K) bool
	parse func(string) (S, error)

	mu      sync.Mutex
	known   map[string]*K // guarded by mu: listed, or learned from logins
	secrets map[string]S  // guarded by mu: from the user list and the DSN
}

// NewCredentials returns credentials without users: keys derives what a login needs from
// a password, plain reports whether keys include the password, parse reads a secret.
func NewCredentials[S Secret, K any](keys func(password string) *K, plain func(*K) bool, parse func(string) (S, error)) *Credentials[S, K] {
	return &Credentials[S, K]{keys: keys, plain: plain, parse: parse, known: make(map[string]*K)}
}

// List replaces the users whose secrets weir holds by the given ones and the DSN's own.
// What weir knows of users that are no longer listed, or have another password, is removed.
// Keys that were learned from a login against a hash stay until the next login brings others:
// without keys a pool could open no backend in between.
func (c *Credentials[S, K]) List(users []User[S], user, password string) {
	secrets, known := make(map[string]S, len(users)+1), make(map[string]*K)
	for _, u := range users {
		secrets[u.Name] = u.Secret
		if plain, ok := u.Secret.Plain(); ok {
			known[u.Name] = c.keys(plain)
		}
	}
	if user != "" && password != "" {
		known[user] = c.keys(password)
		if _, listed := secrets[user]; !listed {
			if secret, err := c.parse(password); err == nil {
				secrets[user] = secret
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for user, old := range c.secrets {
		now, listed := secrets[user]
		was, wasPlain := old.Plain()
		is, isPlain := now.Plain()
		if !listed || wasPlain != isPlain || (isPlain && was != is) {
			delete(c.known, user)
		}
	}
	maps.Copy(c.known, known)
	c.secrets = secrets
}

// Secret returns the secret that weir holds for a user.
func (c *Credentials[S, K]) Secret(user string) (S, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	secret, ok := c.secrets[user]
	return secret, ok
}

// Keys returns what weir can log in with as a user, or nil. The caller must not change
// it.
func (c *Credentials[S, K]) Keys(user string) *K {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[user]
}

// All returns what weir can log in with, by user.
func (c *Credentials[S, K]) All() map[string]*K {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.known)
}

// Learn keeps what a login has revealed, unless weir knows more already: a password serves
// more methods than keys.
func (c *Credentials[S, K]) Learn(user string, k *K) {
	if k == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.known[user]; old != nil && c.plain(old) && !c.plain(k) {
		return
	}
	c.known[user] = k
}

// Inherit adds what another process has learned about users unknown here.
func (c *Credentials[S, K]) Inherit(known map[string]*K) {
	for user, k := range known {
		if c.Keys(user) == nil {
			c.Learn(user, k)
		}
	}
}

// Refuted removes keys that the server has refused: the password has changed.
// Those from the configuration stay, for the operator to correct.
func (c *Credentials[S, K]) Refuted(user string, k *K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, listed := c.secrets[user]; !listed && k != nil && c.known[user] == k {
		delete(c.known, user)
	}
}
