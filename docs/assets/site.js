// A table that is wider than the screen scrolls in a box, which the keyboard has to reach.
document$.subscribe(() =>
  setTimeout(() =>
    document.querySelectorAll(".md-typeset__scrollwrap").forEach((box) => {
      box.tabIndex = 0
    })
  )
)
