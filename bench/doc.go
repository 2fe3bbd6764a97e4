// Package bench compares Headroom with its peers; see README.md.
package bench
